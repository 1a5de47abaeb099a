import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import GroupRange, HoldoutRule, RowsRef, SpanRef
from tasks.data.holdout import exclude_development_rows, trainable
from tasks.worker.evaluation.refit import newest_rows
from tasks.worker.training.training_rows import TrainingRows, read_training_rows, replayed_rows, run_spares
from tests.support.workspace.jobs import (
    FEATURES,
    change_rows,
    make_job,
    make_workspace,
    tiny_config,
    with_held,
    write_rows,
)

RULE = HoldoutRule(group="query_and_item", share=0.2, measured=0.2)
BEST = "train.keep_best={metric: mrr@10, rows: 100, patience: null}"
HEAD = "heads.classification={weight: 0.1, input: query, negative_max: 2, positive_min: 4, refit_rows: 9000}"


def span(rows: int) -> RowsRef:
    return RowsRef(span=SpanRef(name="2026-01", version=1), prefix="rows", rows=rows)


def test_development_rows_are_none_of_the_holdout_and_as_many_as_asked():
    wider = exclude_development_rows(RULE, tiny_config(BEST), [span(2000), span(8000)])
    groups = [str(number) for number in range(10_000)]
    rows = pa.table({"query": groups, "item": groups})
    held, wide = (~trainable(rows, rule) for rule in (RULE, wider))
    assert not (held & ~wide).any(), "the holdout stays as it is"
    assert (wide & ~held).sum() == pytest.approx(100, abs=40)


@pytest.mark.parametrize(
    ("settings", "rows", "left_out"),
    [
        ((), 50, 0),
        ((BEST,), 50, 4),
        ((HEAD,), 50, 2),
        ((HEAD, BEST), 50, 4),
        ((BEST,), 100_000, 100),
        ((HEAD, BEST), 100_000, 500),
    ],
)
def test_as_few_rows_are_left_out_as_will_do(settings: tuple[str, ...], rows: int, left_out: int):
    found = exclude_development_rows(RULE, tiny_config(*settings), [span(rows)])
    assert (found.share - RULE.share) * rows == pytest.approx(left_out)


class Later(NamedTuple):
    """The second run of a lineage with a solved head, over a smaller span."""

    store: DirectoryStore
    config: Config
    first: TrainInputs
    inputs: TrainInputs
    spared: dict[str, GroupRange]


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Later:
    folder = tmp_path_factory.mktemp("development")
    store, rows = make_workspace(folder, rows=8000)
    newer = write_rows(store, "2026-02", 1500, folder)
    config = tiny_config(*FEATURES, HEAD, "train.replay=0.5")
    rows, newer = with_held(store, config, rows, newer)
    first = TrainInputs(rows=(rows,), history=(), parent=None)
    inputs = TrainInputs(rows=(newer,), history=(rows,), parent=None)
    return Later(store, config, first, inputs, run_spares(config, first) | run_spares(config, inputs))


def ids(tables: Iterable[pa.Table]) -> set[str]:
    return {row_id for table in tables for row_id in table["row_id"].to_pylist()}


def groups(tables: Iterable[pa.Table]) -> set[tuple[str, str]]:
    """The texts that the holdout rule hashes."""
    return {pair for table in tables
            for pair in zip(table["query"].to_pylist(), table["item"].to_pylist(), strict=True)}  # fmt: skip


def all_known(table: pa.Table) -> np.ndarray:
    return np.ones(table.num_rows, dtype=bool)


def test_no_step_of_the_lineage_and_no_fit_sees_a_row_that_calibrates(later: Later):
    trained = []
    for inputs in (later.first, later.inputs):
        job = make_job(later.store, later.config, inputs)
        again = dataclasses.replace(replayed_rows(job, inputs), spares=lambda: later.spared)
        trained += [*read_training_rows(job, inputs)[0], *again]
    found = newest_rows(make_job(later.store, later.config, later.inputs), 9000, all_known, later.spared)
    assert found.development is not None
    spans = [row_id.rpartition("-")[0] for row_id in found.development["row_id"].to_pylist()]
    assert set(spans) == {"2026-01", "2026-02"}
    assert not groups([found.development]) & groups(trained), "by their texts, in whatever span"
    assert not ids([found.development]) & ids([found.training])
    assert ids([found.training]) == ids(trained)


def test_a_span_that_spared_no_rows_calibrates_nothing_and_neither_do_its_texts_in_later_spans(
    later: Later, tmp_path: Path
):
    """The lineage had no solved head in its first span, whose texts are all in the second one again."""
    fresh = change_rows(later.store, later.inputs.rows[0], "2026-03", half_are_new, tmp_path)
    (fresh,) = with_held(later.store, later.config, fresh)
    inputs = TrainInputs(rows=(fresh,), history=later.first.rows, parent=None)
    job, spared = make_job(later.store, later.config, inputs), run_spares(later.config, inputs)
    found = newest_rows(job, 9000, all_known, spared).development
    assert found is not None
    assert found.num_rows
    assert all(query.startswith("new ") for query in found["query"].to_pylist())
    assert not groups([found]) & groups(TrainingRows(later.store, later.first.rows, tiny_config(*FEATURES)))
    again = newest_rows(
        make_job(later.store, later.config, later.inputs), 9000, all_known, run_spares(later.config, later.inputs)
    )
    assert again.development is None, "each of its pairs was trained on in the span before"
    assert newest_rows(job, 9000, all_known, {}).development is None


def half_are_new(rows: pa.Table) -> pa.Table:
    queries = [f"new {query}" if number % 2 else query for number, query in enumerate(rows["query"].to_pylist())]
    ids = [name.replace("2026-02", "2026-03") for name in rows["row_id"].to_pylist()]
    rows = rows.set_column(rows.schema.get_field_index("query"), "query", pa.array(queries))
    return rows.set_column(rows.schema.get_field_index("row_id"), "row_id", pa.array(ids))


def test_the_newest_rows_calibrate(later: Later, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tasks.data.holdout.MOST_CALIBRATION_ROWS", 20)
    found = newest_rows(make_job(later.store, later.config, later.inputs), 9000, all_known, later.spared).development
    assert found is not None
    assert found.num_rows == 20
    assert {row_id.rpartition("-")[0] for row_id in found["row_id"].to_pylist()} == {"2026-02"}
