"""Settings and inputs that do not decide the result say so on their field, where it has an effect."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_args

from configs.load import load_config
from configs.schema.config import Config
from tasks.contracts.jobs import Inputs
from tasks.foundation.records import Record, beside, decides


def test_a_setting_beside_the_work_leaves_the_work_as_it_is() -> None:
    config = load_config()
    for changed in ("train.workers=2", "health.strikes=9", "evaluate.gates=[]", "train.log_every_steps=7"):
        assert load_config(overrides=[changed]).same_work_as(config), changed
    for changed in ("train.epochs=9", "seed=8", "evaluate.max_rows=99"):
        assert not load_config(overrides=[changed]).same_work_as(config), changed


def test_only_sections_their_keys_and_inputs_say_that_they_do_not_decide() -> None:
    deeper = [
        f"{section.__name__}: {name}"
        for field in Config.model_fields.values()
        for section in _records(field.annotation)
        for inner in section.model_fields.values()
        for record in _records(inner.annotation)
        for name in _beside(record)
    ]
    deeper += [
        f"{kind.__name__}: {name}"
        for kind in get_args(Inputs)
        for field in kind.model_fields.values()
        for record in _records(field.annotation)
        for name in _beside(record)
    ]
    assert deeper == [], "nobody asks these fields; say it on the key of the section, or on the input"


def test_a_field_decides_unless_it_says_otherwise() -> None:
    class Given(Record):
        made_of: str
        told: str = beside(default="", description="where to")

    assert {name: decides(field) for name, field in Given.model_fields.items()} == {"made_of": True, "told": False}


def _beside(record: type[Record]) -> list[str]:
    return [name for name, field in record.model_fields.items() if not decides(field)]


def _records(annotation: object) -> Iterator[type[Record]]:
    """The records in a type, and all records inside them."""
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _records(field.annotation)
    for part in get_args(annotation):
        yield from _records(part)
