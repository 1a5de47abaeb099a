"""Experiments: their records, and which of them no lineage needs any more.

tasks/campaigns/trying.py begins them.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.references import SpanRef
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import EXPERIMENT, RESULT
from tasks.foundation.records import Record
from tasks.runs import branches, lineage

LONGEST_NAME = 80  # characters
_NAME = re.compile(r"[A-Za-z0-9][\w.=,+-]*")


class TriedSetting(Record):
    """A setting that decides a model, in the lineage's own run and in the experiment."""

    key: str = Field(description="name of the setting, such as train.learning_rate")
    before: Any = Field(description="value in the lineage's own run; null: none, or the key was absent")
    now: Any = Field(description="value in the experiment")


class Experiment(Record):
    """`experiments/<name>.json`, from the first start of the experiment."""

    version: Literal[1] = 1
    name: str = Field(description="name, given or made of the settings")
    span: SpanRef = Field(description="span that it is trained on")
    lineage: str = Field(description="lineage that it is beside, as given by the user")
    branch: str = Field(description="branch that it trains on")
    backfill: str = Field(description="id of the backfill that carries it out")
    run_key: str = Field(description="key of its run")
    beside: str | None = Field(description="key of the lineage's own run over the span; null: it has trained none")
    settings: tuple[TriedSetting, ...] = Field(description="settings that differ from that run's")
    at: str = Field(description="time of the first start, ISO 8601 in UTC")


def is_name(name: str) -> bool:
    """Return True if an experiment may have this name, which is a part of a key."""
    return _NAME.fullmatch(name) is not None and len(name) <= LONGEST_NAME


def find(store: Store, name: str) -> Experiment | None:
    """Return the experiment with this name; None if none has it. Raises StoreError: its record is not readable."""
    if not is_name(name):
        return None
    return find_record(store, EXPERIMENT.key(experiment=name), Experiment, "move the file away, no work is lost")


def read_all(store: Store) -> list[Experiment]:
    """Return all experiments, in the order of their first start. Raises StoreError: a record is not readable."""
    names = (EXPERIMENT.match(key) for key in store.list(EXPERIMENT.within()))
    found = (find(store, fields["experiment"]) for fields in names if fields)
    return sorted((each for each in found if each is not None), key=lambda each: each.at)


def passed(store: Store) -> Iterator[Experiment]:
    """Yield the finished experiments whose lineage continues another checkpoint and has trained another span since.

    Nothing needs their weights any more: a release of these settings would have to train the later spans too.

    Raises:
        StoreError: an experiment, a checkpoint or a branch is not readable.
    """
    for each in read_all(store):
        continues = branches.active(store, each.lineage)
        if continues == each.branch or not store.exists(RESULT.key(run=each.run_key, stage=Stage.evaluate)):
            continue
        head = lineage.head(store, continues)
        if head is not None and head[1].consumed and head[1].consumed[-1].span != each.span:
            yield each
