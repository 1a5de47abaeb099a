"""What else is said of a span next to those before it: a limit that stops the run, and another schema.

Spans that went wrong in other ways are in tests/pipeline/test_corrupted_spans.py, through the whole flow.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tests.support.workspace.spans import MARCH, check, failed, job, rows, validated, write_span

STOCK = {"stock": pa.float64()}


def test_the_drift_of_a_column_stops_the_run_where_that_is_asked(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, rows(195, start=390, price=950.0))
    critical = ["validate.drift.columns={price: {severity: critical}}"]
    with pytest.raises(DataError, match=r"not fit to train on:\n- price drift: .*\nBad rows by reason: none"):
        validate.run(job(store, history=[history], overrides=critical))


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        ({}, STOCK, "stock is new."),
        (STOCK, {}, "stock is gone."),
        (STOCK, {"stock": pa.int64()}, "stock is int64, it was double."),
    ],
)
def test_another_schema_is_described(
    store: DirectoryStore, tmp_path: Path, before: dict[str, Any], now: dict[str, Any], sentence: str
):
    history = validated(store, tmp_path, rows(390), more=before)
    write_span(store, tmp_path, MARCH, rows(195, start=390), **now)
    outcome = validate.run(job(store, history=[history]))
    assert failed(outcome) == ["columns as before"]
    assert check(outcome, "columns as before").sentence == sentence
