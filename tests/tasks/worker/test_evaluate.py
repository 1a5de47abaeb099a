from pathlib import Path

import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import ModelRef, RowsRef
from tasks.data.rows import is_holdout
from tasks.foundation.errors import DataError, StoreError
from tasks.worker import evaluate
from tasks.worker.process.job import Rank
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    write_rows,
)

SLICED = ["evaluate.slices=[locale, gift]", "evaluate.min_slice_rows=5"]


Workspace = tuple[DirectoryStore, RowsRef]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("evaluate"), rows=200, distinct=40)


@pytest.fixture(scope="module")
def challenger(workspace: Workspace) -> ModelRef:
    store, rows = workspace
    return model_of(train_model(store, tiny_config(CLASSIFIER, "train.epochs=4"), rows))


def run(
    store: DirectoryStore,
    rows: tuple[RowsRef, ...],
    challenger: ModelRef,
    *overrides: str,
    champion: ModelRef | None = None,
) -> EvaluateOutcome:
    inputs = EvaluateInputs(rows=rows, challenger=challenger, champion=champion)
    return evaluate.run(make_job(store, tiny_config(CLASSIFIER, *overrides), inputs))


def held_rows(store: DirectoryStore, rows: RowsRef) -> list[dict[str, object]]:
    table = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    return [row for row in table.to_pylist() if is_holdout(row["row_id"], 0.2)]


def test_the_holdout_is_ranked_among_all_items(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    outcome = run(store, (rows,), challenger)
    assert outcome.holdout_rows == len(held_rows(store, rows))
    assert outcome.corpus_items == 40
    assert set(outcome.challenger) == {"recall@1", "recall@10", "mrr@10", "ndcg@10", "accuracy", "macro_f1", "auc"}
    assert outcome.challenger["recall@10"] > 0.5, "four epochs on forty items"
    assert (outcome.champion, outcome.champion_version) == (None, None)


def test_the_holdout_is_pooled_over_the_spans(workspace: Workspace, challenger: ModelRef, tmp_path: Path):
    store, rows = workspace
    later = write_rows(store, "2026-02", 60, tmp_path, distinct=60)
    outcome = run(store, (rows, later), challenger)
    assert outcome.holdout_rows == len(held_rows(store, rows)) + len(held_rows(store, later))
    assert outcome.corpus_items == 60, "the first forty items are the same"


def test_a_champion_is_measured_on_the_same_rows(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    itself = run(store, (rows,), challenger, champion=challenger)
    assert itself.champion == itself.challenger
    assert itself.champion_version == challenger.version


OTHERS = {
    "another width and pooling": [
        "model.scratch={vocab_size: 300, hidden_size: 16, layers: 2, attention_heads: 2, intermediate_size: 32, "
        "max_tokens: 64}",
        "model.pooling=cls",
    ],
    "interaction and features that the challenger has not": [*FEATURES],
    "fewer positions than the rungs of today": [
        "model.scratch.max_tokens=6",
        "train.shapes={query: [6], item: [6]}",
        "infer.token_rungs=[6]",
    ],
    "no classifier": ["heads.classification=null"],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_champion_may_have_another_shape_and_lineage(workspace: Workspace, challenger: ModelRef, kind: str):
    store, rows = workspace
    lineage = f"lineage={kind.replace(' ', '-')}"
    config = tiny_config(CLASSIFIER, *OTHERS[kind], lineage)
    champion = model_of(train_model(store, config, rows, run_key=kind.replace(" ", "-")))
    outcome = run(store, (rows,), challenger, champion=champion)
    assert outcome.champion is not None
    assert outcome.challenger == run(store, (rows,), challenger).challenger, "the champion changes nothing"
    assert ("auc" in outcome.champion) == (kind != "no classifier")
    assert 0 < outcome.champion["mrr@10"] <= 1
    assert outcome.champion != outcome.challenger


def test_metrics_by_slice(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    outcome = run(store, (rows,), challenger, *SLICED)
    held_out = held_rows(store, rows)
    counts = {}
    for row in held_out:
        counts["locale", row["locale"]] = counts.get(("locale", row["locale"]), 0) + 1
        gift = {None: "(none)", True: "true", False: "false"}[row["gift"]]  # type: ignore[index]
        counts["gift", gift] = counts.get(("gift", gift), 0) + 1
    expected = {key: count for key, count in counts.items() if count >= 5}
    assert {(one.column, one.value): one.rows for one in outcome.slices} == expected
    assert len(expected) >= 4
    by_locale = [one for one in outcome.slices if one.column == "locale"]
    weighted = sum(one.rows * one.metrics["recall@10"] for one in by_locale) / len(held_out)
    assert weighted == pytest.approx(outcome.challenger["recall@10"])


def test_no_holdout_row_is_an_error_of_the_data(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    with pytest.raises(DataError, match=r"no holdout row among the 200 rows .* raise evaluate\.holdout_share"):
        run(store, (rows,), challenger, "evaluate.holdout_share=1e-9")


def test_a_missing_slice_column_is_named(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    with pytest.raises(DataError, match="no column 'country'"):
        run(store, (rows,), challenger, "evaluate.slices=[country]")


def test_a_checkpoint_with_another_checksum_is_refused(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    forged = challenger.checkpoint.model_copy(update={"sha256": "f" * 64})
    with pytest.raises(StoreError, match="not the checkpoint"):
        run(store, (rows,), challenger.model_copy(update={"checkpoint": forged}))


def run_as_rank(rank: Rank, uri: str, inputs: EvaluateInputs) -> EvaluateOutcome:
    store = DirectoryStore(Path(uri))
    return evaluate.run(make_job(store, tiny_config(CLASSIFIER, *SLICED), inputs, rank=rank))


def test_two_workers_measure_the_same_as_one(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    inputs = EvaluateInputs(rows=(rows,), challenger=challenger, champion=challenger)
    first, second = run_ranks(2, run_as_rank, store.uri, inputs)
    assert first == second
    assert first.challenger == pytest.approx(run(store, (rows,), challenger, *SLICED).challenger, abs=0.03)
