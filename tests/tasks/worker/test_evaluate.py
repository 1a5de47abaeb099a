import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from configs.schema.gates import METRICS, Family, names_of
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import EvaluateInputs, InferInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import HoldoutRule, ModelRef, RowsRef
from tasks.contracts.runs import RunPlan
from tasks.data.holdout import read_sides, split_holdout, unseen
from tasks.data.rows import normal_text
from tasks.foundation.errors import DataError, StoreError
from tasks.judging.judge_run import judge_evaluation
from tasks.quality.row_results import RowResults, read_row_results
from tasks.worker import evaluate
from tasks.worker.process.job import Rank
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    LABEL_HEADS,
    change_rows,
    infer_alone,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
    write_rows,
)

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

Workspace = tuple[DirectoryStore, RowsRef]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("evaluate"), rows=200, distinct=40)


@pytest.fixture(scope="module")
def challenger(workspace: Workspace) -> ModelRef:
    store, rows = workspace
    return model_of(train_model(store, tiny_config(CLASSIFIER, *LABEL_HEADS, "train.epochs=4"), rows))


def run(
    store: DirectoryStore,
    rows: tuple[RowsRef, ...],
    challenger: ModelRef,
    *overrides: str,
    champion: ModelRef | None = None,
    champion_vectors: str | None = None,
    run_key: str = "run",
) -> EvaluateOutcome:
    config = tiny_config(CLASSIFIER, *LABEL_HEADS, *overrides)
    inputs = EvaluateInputs(
        rows=with_held(store, config, *rows),
        catalogue=make_catalogue(store, config, *rows),
        challenger=challenger,
        champion=champion,
        champion_vectors=champion_vectors,
    )
    return evaluate.run(make_job(store, config, inputs, run_key))


def held_rows(store: DirectoryStore, rows: RowsRef, share: float = 0.2) -> list[dict[str, Any]]:
    table = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    return split_holdout(table, HoldoutRule(group="query_and_item", share=share, measured=share)).held.to_pylist()


def test_the_holdout_is_ranked_among_all_items(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    outcome = run(store, (rows,), challenger)
    assert outcome.holdout_rows == len(held_rows(store, rows))
    assert outcome.corpus_items == 40
    of_rows = {name for name, metric in METRICS.items() if metric.family.of_rows}
    assert set(outcome.challenger) == of_rows - {"recall@100"}, "any model finds an item of forty among a hundred"
    assert outcome.challenger["recall@10"] > 0.5, "four epochs on forty items"
    assert (outcome.champion, outcome.champion_version) == (None, None)


def test_the_holdout_is_pooled_over_the_spans(workspace: Workspace, challenger: ModelRef, tmp_path: Path):
    store, rows = workspace
    later = write_rows(store, "2026-02", 60, tmp_path, distinct=60)
    outcome = run(store, (rows, later), challenger)
    assert outcome.holdout_rows == len(held_rows(store, rows)) + len(held_rows(store, later))
    assert outcome.corpus_items == 60, "the first forty items are the same"


def test_of_more_rows_than_the_cap_a_sample_is_measured(workspace: Workspace, challenger: ModelRef, tmp_path: Path):
    store, rows = workspace
    later = write_rows(store, "2026-12", 200, tmp_path, distinct=60)
    whole, half, few = (
        run(store, (rows, later), challenger, f"evaluate.max_rows={most}", run_key=f"at-most-{most}")
        for most in (1000, 40, 20)
    )
    assert whole.sampled_from is None
    assert half.sampled_from == whole.holdout_rows
    assert 20 < half.holdout_rows <= 40

    def measured(outcome: EvaluateOutcome) -> set[str]:
        return set(read_row_results(store, str(outcome.rows_key)).row_id)

    assert measured(few) < measured(half) < measured(whole), "a larger sample adds to a smaller one"


@pytest.mark.parametrize(("column", "span"), [("item_id", "2026-08"), ("query", "2026-09")])
def test_without_a_competitor_nothing_is_measured_and_the_gates_refuse(
    workspace: Workspace, challenger: ModelRef, column: str, span: str, tmp_path: Path
):
    """One item for all rows, or one query to which all items are right: any model would have a recall of 1."""
    store, plain = workspace

    def alike(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(column), column, pa.array(["all the same"] * table.num_rows))

    rows = change_rows(store, plain, span, alike, tmp_path)
    gates = [f"{{metric: {name}, direction: higher, threshold: 0.1, baseline: none, severity: critical}}"
             for name in ("recall@1", "recall@10", "mrr@10")]  # fmt: skip
    settings = f"evaluate.gates=[{', '.join(gates)}]", "heads.contrastive.positives_only=false"
    outcome = run(store, (rows,), challenger, *settings, champion=challenger, run_key=column)
    assert not set(outcome.challenger) & {*names_of(Family.ranking), "loss"}
    plan = RunPlan(
        run_key=column, span=rows.span, window=(rows.span,), history=(), parent=None, workspace=store.uri,
        config=tiny_config(CLASSIFIER, *LABEL_HEADS, *settings),
    )  # fmt: skip
    verdicts = judge_evaluation(store, plan, outcome).verdicts
    assert [(each.answer, each.refuses, each.value) for each in verdicts] == [("undecided", True, None)] * 3


def test_unseen_and_seen_queries_are_measured_apart(workspace: Workspace, challenger: ModelRef, tmp_path: Path):
    store, rows = workspace

    def few_queries(table: pa.Table) -> pa.Table:
        queries = [f"query {number * 7 % 61}" for number in range(table.num_rows)]
        return table.set_column(table.column_names.index("query"), "query", pa.array(queries))

    later = change_rows(store, rows, "2026-11", few_queries, tmp_path)
    outcome = run(store, (rows, later), challenger, "evaluate.holdout_share=0.4", champion=challenger)
    rule = HoldoutRule(group="query_and_item", share=0.4, measured=0.4)
    sides = list(read_sides(store, [rows, later], rule, []))
    trained = {normal_text(query) for each in sides for query in each.training["query"].to_pylist()}
    held = pa.concat_tables([each.held for each in sides])
    alone = unseen(held, rule)
    measured = read_row_results(store, str(outcome.rows_key))
    assert measured.row_id.tolist() == held["row_id"].to_pylist()
    assert measured.unseen.tolist() == alone.tolist()
    assert measured.query_trained.tolist() == [normal_text(each) in trained for each in held["query"].to_pylist()]
    assert not measured.query_trained[alone].any()
    found = outcome.by_queries[Role.challenger]
    for part, among in ((found.unseen, alone), (found.seen, ~alone)):
        among = among & measured.pair
        assert part.rows == among.sum() > 10
        assert part.main == pytest.approx((measured.ranks[Role.challenger][among] <= 10).mean())
        assert part.low is not None
        assert part.main is not None
        assert part.high is not None
        assert part.low <= part.main <= part.high
    assert found.seen_trained == pytest.approx(measured.query_trained[~alone & measured.pair].mean())
    assert found.seen_trained is not None
    assert 0 < found.seen_trained < 1
    assert outcome.by_queries[Role.champion] == found


def test_narrower_widths_are_measured_by_the_first_numbers_of_the_vectors(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    gate = "{metric: recall@10, direction: higher, threshold: 0, baseline: none, severity: critical, width: 24}"
    widths = "heads.contrastive.matryoshka=[1]", f"evaluate.gates=[{gate}]"
    outcome = run(store, (rows,), challenger, *widths, champion=challenger)
    measured = outcome.measured[0]
    assert list(measured.recall_by_width) == [1, 24]
    assert measured.recall_by_width[1] < 0.5 < measured.recall_by_width[24], "one number is 1 or -1"
    assert outcome.rows_key is not None
    results = read_row_results(store, outcome.rows_key)
    ranks = results.narrow_ranks[24]
    assert set(ranks) >= {Role.challenger, Role.champion}, "a gate compares them row by row"
    assert (ranks[Role.challenger][results.pair] <= 10).mean() == pytest.approx(measured.recall_by_width[24])


# --- a part of a larger catalogue ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(workspace: Workspace, challenger: ModelRef) -> str:
    """The folder of the vectors of all forty items, by the challenger's model."""
    store, rows = workspace
    return infer_vectors(store, tiny_config(CLASSIFIER), rows, challenger).prefix


@pytest.fixture(scope="module")
def two(workspace: Workspace, challenger: ModelRef) -> dict[str, tuple[ModelRef, str]]:
    """Two models with their vectors of all forty items, in more than one partition."""
    store, rows = workspace
    config = tiny_config(CLASSIFIER, "infer.shard_rows=7")
    other = model_of(train_model(store, tiny_config(CLASSIFIER, *LABEL_HEADS, "seed=5", "lineage=other"), rows))
    return {name: (model, infer_vectors(store, config, rows, model).prefix)
            for name, model in (("one", challenger), ("other", other))}  # fmt: skip


def evaluate_two(
    store: DirectoryStore,
    rows: RowsRef,
    two: dict[str, tuple[ModelRef, str]],
    challenger: str,
    champion: str,
    items: int,
) -> tuple[EvaluateOutcome, RowResults]:
    """Evaluate one model against the other among a part of the catalogue of so many items."""
    config = tiny_config(CLASSIFIER, *LABEL_HEADS, "infer.shard_rows=7", f"evaluate.corpus_items={items}")
    catalogue = make_catalogue(store, config, rows)
    inputs = EvaluateInputs(
        rows=with_held(store, config, rows), catalogue=catalogue,
        challenger=two[challenger][0], challenger_vectors=two[challenger][1],
        champion=two[champion][0], champion_vectors=two[champion][1],
    )  # fmt: skip
    outcome = evaluate.run(make_job(store, config, inputs))
    assert outcome.rows_key is not None
    return outcome, read_row_results(store, outcome.rows_key)


@pytest.mark.parametrize("names", [("one", "other"), ("other", "one")])
def test_models_meet_on_a_whole_catalogue_that_the_corpus_is_a_part_of(
    workspace: Workspace, two: dict[str, tuple[ModelRef, str]], names: tuple[str, str]
):
    """Else whichever model chose the corpus would lose to the other one; the answer is that of a whole search."""
    store, rows = workspace
    everything, whole = evaluate_two(store, rows, two, *names, items=1000)
    outcome, part = evaluate_two(store, rows, two, *names, items=3)
    assert outcome.corpus_items < outcome.catalogue_items == outcome.ranked_among == 40
    assert (outcome.whole_items, outcome.shared_items) == (40, {Role.champion: 40})
    assert everything.champion is not None
    assert everything.challenger["mrr@10"] != everything.champion["mrr@10"], "two models"
    for role in (Role.challenger, Role.champion):
        assert part.shared_ranks[Role.champion][role].tolist() == whole.ranks[role].tolist()
    assert part.whole_ranks is not None
    assert part.whole_ranks.tolist() == whole.ranks[Role.challenger].tolist()
    assert part.whole_competitors is not None
    competitors = part.whole_competitors.tolist(), part.shared_competitors[Role.champion].tolist()
    assert competitors == (whole.competitors.tolist(),) * 2
    assert (part.competitors < whole.competitors).all()
    eased = [part.ranks[role].tolist() != whole.ranks[role].tolist() for role in (Role.challenger, Role.champion)]
    assert any(eased), "the corpus lacks competitors"
    ranked = {"recall@1", "recall@10", "mrr@10", "ndcg@10"}
    assert {name: outcome.challenger[name] for name in ranked} == {name: everything.challenger[name] for name in ranked}


def test_items_that_one_model_alone_holds_do_not_compete(
    workspace: Workspace, two: dict[str, tuple[ModelRef, str]], tmp_path: Path
):
    store, rows = workspace
    config = tiny_config(CLASSIFIER, "infer.shard_rows=7")
    fewer = change_rows(store, rows, "2026-05", lambda table: table.filter(pc.field("item_id") > "f"), tmp_path)
    left = set(pq.read_table(store.path(fewer.prefix) / "part-00000.parquet")["item_id"].to_pylist())
    assert 0 < len(left) < 40
    vectors = infer_vectors(store, config, fewer, two["other"][0]).prefix
    outcome, part = evaluate_two(store, rows, {**two, "other": (two["other"][0], vectors)}, "one", "other", items=3)
    assert (outcome.whole_items, outcome.shared_items) == (40, {Role.champion: len(left)})
    assert part.shared_competitors[Role.champion].max() == len(left), "of a row whose own item the champion lacks"
    assert outcome.ranked_among == len(left)


def test_only_items_with_equal_content_keep_their_released_vectors(
    workspace: Workspace, challenger: ModelRef, released: str, tmp_path: Path
):
    store, rows = workspace

    def renamed(table: pa.Table) -> pa.Table:
        later = table.slice(0, 3)
        later = later.set_column(1, "time", pa.array([dt.datetime(2026, 2, 1, tzinfo=dt.UTC)] * 3))
        return later.set_column(
            later.column_names.index("item"), "item", pa.array([f"another text {number}" for number in range(3)])
        )

    later = change_rows(store, rows, "2026-03", renamed, tmp_path)
    outcome = run(store, (rows, later), challenger, champion=challenger, champion_vectors=released)
    assert (outcome.champion_read, outcome.champion_embedded) == (37, 3)
    assert outcome.champion == pytest.approx(outcome.challenger), "the same model, with its texts of today"


def test_damaged_vectors_of_the_champion_are_made_again(
    workspace: Workspace, challenger: ModelRef, released: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    source, rows = workspace
    store = DirectoryStore(tmp_path / "copy")
    shutil.copytree(source.root, store.root)
    (store.path(released) / "part-00000.parquet").write_bytes(b"damaged")
    outcome = run(store, (rows,), challenger, champion=challenger, champion_vectors=released)
    assert (outcome.champion_read, outcome.champion_embedded) == (0, 40)
    assert outcome.champion == outcome.challenger
    assert "released vectors" in capfd.readouterr().out


def test_a_champion_reads_texts_as_far_as_its_release_did(workspace: Workspace, challenger: ModelRef, tmp_path: Path):
    """All of its vectors are read, so nothing but the cut of its queries can change its numbers."""
    store, rows = workspace
    config = tiny_config(CLASSIFIER, "infer.max_tokens=4")
    catalogue = make_catalogue(store, config, rows)
    champion = challenger.model_copy(update={"version": "short"})
    infer_inputs = InferInputs(catalogue=catalogue, model=champion)
    vectors = infer_alone(make_job(store, config, infer_inputs, "short")).prefix
    then, now = (
        run(store, (rows,), challenger, f"infer.max_tokens={longest}", champion=champion, champion_vectors=vectors)
        for longest in (4, 16)
    )
    assert then.champion_read == now.champion_read == 40
    assert now.champion == then.champion
    assert now.challenger != then.challenger, "today's model reads further"


def test_rows_about_deleted_items_do_not_count(workspace: Workspace, challenger: ModelRef, tmp_path: Path):
    store, rows = workspace
    gone = held_rows(store, rows)[0]["item_id"]
    about = sum(row["item_id"] == gone for row in held_rows(store, rows))
    config = tiny_config(CLASSIFIER)
    others = change_rows(store, rows, "2026-04", lambda table: table.filter(pc.field("item_id") != gone), tmp_path)
    catalogue = make_catalogue(store, config, others)
    held = with_held(store, config, rows)
    inputs = EvaluateInputs(rows=held, catalogue=catalogue, challenger=challenger, champion=None)
    outcome = evaluate.run(make_job(store, config, inputs))
    assert (outcome.rows_left_out, outcome.corpus_items) == (about, 39)
    assert outcome.holdout_rows == len(held_rows(store, rows)) - about


OTHERS = {
    "another width and pooling": [
        "model.scratch={vocab_size: 300, hidden_size: 16, layers: 2, attention_heads: 2, intermediate_size: 32, "
        "max_tokens: 64}",
        "model.pooling=cls",
    ],
    "interaction and features that the challenger has not": [*FEATURES],
    "fewer positions than the texts of today": [
        "model.scratch.max_tokens=6",
        "train.max_tokens={query: 6, item: 6}",
        "infer.max_tokens=6",
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
    assert not {"multiclass_macro_f1", "rmse"} & set(outcome.champion), "its lineage has no such heads"
    assert 0 < outcome.champion["mrr@10"] <= 1
    assert outcome.champion != outcome.challenger


def test_no_holdout_row_is_an_error_of_the_data(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    with pytest.raises(DataError, match=r"200 .*holdout_share=SHARE"):
        run(store, (rows,), challenger, "evaluate.holdout_share=1e-9")


def test_a_checkpoint_with_another_checksum_is_refused(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    forged = challenger.checkpoint.model_copy(update={"sha256": "f" * 64})
    with pytest.raises(StoreError, match="not the checkpoint"):
        run(store, (rows,), challenger.model_copy(update={"checkpoint": forged}))


def run_as_rank(rank: Rank, uri: str, inputs: EvaluateInputs) -> EvaluateOutcome:
    store = DirectoryStore(Path(uri))
    config = tiny_config(CLASSIFIER, "heads.contrastive.matryoshka=[8]")
    return evaluate.run(make_job(store, config, inputs, rank=rank))


@pytest.mark.shows("shared evaluation")
def test_two_workers_measure_the_same_as_one(workspace: Workspace, challenger: ModelRef):
    store, rows = workspace
    catalogue = make_catalogue(store, tiny_config(), rows)
    held = with_held(store, tiny_config(), rows)
    inputs = EvaluateInputs(rows=held, catalogue=catalogue, challenger=challenger, champion=challenger)
    first, second = run_ranks(2, run_as_rank, store.uri, inputs)
    assert first == second
    assert first == run_as_rank(Rank(0, 1, 0), store.uri, inputs), "to the last bit"
