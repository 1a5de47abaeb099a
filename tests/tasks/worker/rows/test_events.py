"""validate over rows with events: labels and weights by a table of the configuration."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from configs.schema.validation import EventsConfig
from infra.store.directory import DirectoryStore
from tasks.data.label_columns import with_labels
from tasks.data.rows import read_rows
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tests.support.pages.golden import Golden
from tests.support.workspace.spans import MARCH, check, failed, job, quarantined, rows, write_span

EVENTS = (
    "validate.events={values: {impression: {label: 0}, click: {label: 1}, purchase: {label: 1, weight: 5}, seen: {}}}"
)
HEAD = "heads.classification={weight: 0.1, input: pair, negative_max: 0, positive_min: 1}"
SETTINGS = [EVENTS, HEAD, "heads.contrastive.positives_only=true", "train.row_weight=event_weight"]


def with_events(count: int, *events: Any) -> list[dict[str, Any]]:
    return [row | {"label": None, "event": events[number % len(events)]} for number, row in enumerate(rows(count))]


def test_events_become_labels_and_weights(store: DirectoryStore, tmp_path: Path, golden: Golden) -> None:
    write_span(store, tmp_path, MARCH, with_events(40, "impression", "click", "purchase", "seen"), event=pa.string())
    outcome = validate.judge(job(store, overrides=SETTINGS))
    assert (outcome.rows_clean, failed(outcome)) == (40, [])
    read = pa.concat_tables(read_rows(store, outcome.rows, ["event", "event_weight"])).slice(0, 4).to_pylist()
    assert [(row["event"], row["label"], row["event_weight"]) for row in read] == [
        ("impression", 0.0, 1.0),
        ("click", 1.0, 1.0),
        ("purchase", 1.0, 5.0),
        ("seen", None, 1.0),
    ]
    golden(check(outcome, "events known").sentence)


def test_unknown_events_are_set_apart_and_named(store: DirectoryStore, tmp_path: Path, golden: Golden) -> None:
    values = with_events(40, *["click"] * 37, "wish", "wish", None)
    write_span(store, tmp_path, MARCH, values, event=pa.string())
    outcome = validate.judge(job(store, overrides=SETTINGS))
    assert (outcome.rows_clean, outcome.reasons) == (37, {"unknown event": 3})
    found = check(outcome, "events known")
    assert (found.passed, found.severity, found.observed) == (False, "warning", 3)
    golden(found.sentence)
    assert [(row["event"], row["reason"]) for row in quarantined(store, outcome)] == [
        ("wish", "unknown event"),
        ("wish", "unknown event"),
        (None, "unknown event"),
    ]


def test_too_many_unknown_events_end_the_run_with_the_way_out(store: DirectoryStore, tmp_path: Path) -> None:
    write_span(store, tmp_path, MARCH, with_events(40, "click", "wish"), event=pa.string())
    with pytest.raises(DataError, match=r"20 .*'wish' \(20\)"):
        validate.judge(job(store, overrides=SETTINGS))


def test_a_missing_column_of_events_is_named_with_its_key(store: DirectoryStore, tmp_path: Path) -> None:
    write_span(store, tmp_path, MARCH, rows(40))
    with pytest.raises(DataError, match=r"'event'; .*events\.column"):
        validate.judge(job(store, overrides=SETTINGS))


@pytest.mark.parametrize(
    ("values", "kind", "names"),
    [
        ([1.0, 2.0], pa.float64(), (1, 2)),
        ([False, True], pa.bool_(), (False, True)),
        (["1", "2"], pa.string(), (1, 2)),
    ],
    ids=["numbers", "booleans", "texts of numbers"],
)
def test_codes_and_booleans_are_events_too(values: list[Any], kind: pa.DataType, names: tuple[Any, Any]) -> None:
    events = EventsConfig.model_validate({"column": "code", "values": {names[0]: {"label": 0}, names[1]: {"label": 1}}})
    found, unknown = with_labels(pa.table({"code": pa.array(values, kind), "label": pa.nulls(2, pa.float64())}), events)
    assert (found["label"].to_pylist(), len(unknown)) == ([0.0, 1.0], 0)
