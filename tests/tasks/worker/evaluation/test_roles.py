"""Each model is measured once, in each of its roles, and its answer to each row is kept."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.schema.gates import Family, names_of
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import GOLDEN, Role
from tasks.contracts.jobs import EvaluateInputs, Rival
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import CheckpointRef, HoldoutRule, ModelRef, RowsRef
from tasks.data.holdout import read_sides
from tasks.judging.golden_set import store_golden_set
from tasks.quality.row_results import read_row_results
from tasks.worker import evaluate
from tasks.worker.evaluation.models import untrained_parts
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.start import build_parts
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    all_rows,
    change_rows,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

SETTINGS = [CLASSIFIER, *FEATURES]


@dataclasses.dataclass(frozen=True)
class Made:
    store: DirectoryStore
    rows: RowsRef
    before: ModelRef
    after: ModelRef
    vectors: str  # by the model before


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One model after another, on the same rows."""
    store, rows = make_workspace(tmp_path_factory.mktemp("roles"), rows=200, distinct=40)
    before = train_model(store, tiny_config(*SETTINGS), rows)
    after = train_model(store, tiny_config(*SETTINGS, "train.epochs=3"), rows, before.checkpoint, run_key="next")
    vectors = infer_vectors(store, tiny_config(*SETTINGS), rows, model_of(before)).prefix
    return Made(store, rows, model_of(before), model_of(after), vectors)


def inputs(made: Made, *rows: RowsRef, golden: str | None = None, rivals: tuple[Rival, ...] = ()) -> EvaluateInputs:
    return EvaluateInputs(
        rows=with_held(made.store, tiny_config(*SETTINGS), *(rows or (made.rows,))),
        catalogue=make_catalogue(made.store, tiny_config(*SETTINGS), *(rows or (made.rows,))),
        challenger=made.after,
        champion=made.before,
        champion_vectors=made.vectors,
        champion_release=3,
        rivals=rivals,
        golden=golden,
    )


def run(made: Made, given: EvaluateInputs) -> EvaluateOutcome:
    return evaluate.run(make_job(made.store, tiny_config(*SETTINGS), given))


@pytest.fixture(scope="module")
def outcome(made: Made) -> EvaluateOutcome:
    first = Rival(role=Role.first, release=1, model=made.after.model_copy(update={"version": "other"}), vectors=None)
    previous = Rival(role=Role.previous, release=1, model=first.model, vectors=None)
    best = Rival(role=Role.best, release=2, model=made.before, vectors=made.vectors)
    return run(made, inputs(made, rivals=(previous, first, best)))


def test_every_role_has_its_numbers(made: Made, outcome: EvaluateOutcome):
    measured = {each.role: each for each in outcome.measured}
    assert list(measured) == list(Role)
    assert [each.release for each in outcome.measured] == [None, 3, 1, None, 1, 2]
    assert measured[Role.challenger].metrics == outcome.challenger
    assert measured[Role.champion].metrics == outcome.champion == measured[Role.best].metrics
    assert measured[Role.first].metrics == pytest.approx(outcome.challenger), "the same weights by another name"
    assert measured[Role.untrained].metrics["loss"] > outcome.challenger["loss"], "training taught it something"


def test_the_vectors_of_every_model_have_their_numbers(outcome: EvaluateOutcome):
    of_vectors, of_both = set(names_of(Family.vectors)), set(names_of(Family.compatibility))
    for each in outcome.measured:
        assert set(each.vectors) == of_vectors | (of_both if each.role is Role.challenger else set())
    assert 0 < outcome.measured[0].vectors["same_item_cosine"] < 1


def test_the_answers_to_each_row_are_kept(made: Made, outcome: EvaluateOutcome):
    assert outcome.rows_key is not None
    results = read_row_results(made.store, outcome.rows_key)
    assert len(results.row_id) == outcome.holdout_rows
    assert {each.role: results.metrics(each.role) for each in outcome.measured} == {
        each.role: each.metrics for each in outcome.measured
    }
    assert set(results.columns) == {"price", "locale", "gift"}, "features and other columns alike"
    table = pq.read_table(made.store.path(made.rows.prefix) / "part-00000.parquet")
    locale = dict(zip(table["row_id"].to_pylist(), table["locale"].to_pylist(), strict=True))
    assert results.columns["locale"].tolist() == [locale[row_id] for row_id in results.row_id]
    (span,) = outcome.spans
    assert (span.span, span.rows, span.metrics[Role.champion]) == ("2026-01", outcome.holdout_rows, outcome.champion)


def test_spans_may_have_columns_of_their_own(made: Made, tmp_path: Path):
    def changed(table: pa.Table) -> pa.Table:
        ids = pa.array([f"later-{number}" for number in range(table.num_rows)])
        table = table.set_column(table.column_names.index("row_id"), "row_id", ids)
        return table.append_column("country", pa.array(["at"] * table.num_rows))

    later = change_rows(made.store, made.rows, "2026-02", changed, tmp_path)
    found = run(made, inputs(made, made.rows, later))
    assert found.rows_key is not None
    results = read_row_results(made.store, found.rows_key)
    assert set(results.columns["country"][results.span == "2026-01"]) == {"(none)"}
    assert set(results.columns["country"][results.span == "2026-02"]) == {"at"}
    assert [each.span for each in found.spans] == ["2026-01", "2026-02"]


# --- the golden set -----------------------------------------------------------------------------------------------


def golden_key(made: Made, folder: Path) -> str:
    """Of four rows the second one was trained on, and the third one held out."""
    (sides,) = read_sides(made.store, [made.rows], HoldoutRule.of(tiny_config(*SETTINGS).evaluate), [])
    trained, held = (side.slice(0, 1).to_pylist()[0] for side in sides)
    lines = [
        f"{query},{row['item']},{row['item_id']}"
        for query, row in (("a thing", trained), (trained["query"].upper(), trained), (held["query"], held))
    ]
    file = folder / "golden.csv"
    file.write_text("\n".join(["query,item,item_id", *lines, "a tea pot,iron tea pot,new\n"]))
    return store_golden_set(made.store, str(file))


def test_golden_rows_are_measured_apart_from_the_holdout(made: Made, outcome: EvaluateOutcome, tmp_path: Path):
    found = run(made, inputs(made, golden=golden_key(made, tmp_path)))
    assert (found.golden_rows, found.golden_trained, found.holdout_rows) == (4, 1, outcome.holdout_rows)
    assert found.corpus_items == outcome.corpus_items + 1, "an item that the catalogue lacks"
    assert found.rows_key is not None
    results = read_row_results(made.store, found.rows_key)
    assert results.span[results.golden].tolist() == [GOLDEN] * 4
    assert results.pair[results.golden].all()
    assert found.challenger == results.metrics(Role.challenger, ~results.golden)
    assert set(results.metrics(Role.challenger, results.golden)) >= {"recall@10", "loss"}
    assert "accuracy" not in results.metrics(Role.challenger, results.golden), "they have no label"
    assert found.golden[Role.champion] == results.metrics(Role.champion, results.golden)
    assert [each.span for each in found.spans] == ["2026-01"]


def test_spans_validated_with_the_golden_set_are_not_searched_for_it(made: Made, tmp_path: Path):
    key = golden_key(made, tmp_path)
    given = inputs(made, golden=key)
    held = with_held(made.store, tiny_config(*SETTINGS), made.rows, golden=key)
    assert run(made, given.model_copy(update={"rows": held})).golden_trained == 0


def test_golden_rows_count_where_only_positives_are_pairs(made: Made, tmp_path: Path):
    config = tiny_config(*SETTINGS, "heads.contrastive.positives_only=true")
    found = evaluate.run(make_job(made.store, config, inputs(made, golden=golden_key(made, tmp_path))))
    assert found.rows_key is not None
    results = read_row_results(made.store, found.rows_key)
    assert 0 <= results.metrics(Role.challenger, results.golden)["recall@10"] <= 1.0


# --- the untrained model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["from scratch", "pretrained"])
def test_untrained_weights_are_those_that_the_lineage_began_with(made: Made, kind: str, tmp_path: Path):
    config = tiny_config(*SETTINGS, "seed=5")
    like = load_parts(made.store, made.after.checkpoint)
    rows = [all_rows(made.store, [made.rows], config)]
    if kind == "pretrained":
        like.model.encoder.save_pretrained(tmp_path / "pretrained")
        like.tokenizer.save(str(tmp_path / "pretrained" / "tokenizer.json"))
        config = tiny_config(*SETTINGS, f"model.pretrained={tmp_path / 'pretrained'}")
    began, found = (parts.model.state_dict() for parts in (build_parts(config, rows), untrained_parts(config, like)))
    assert began.keys() == found.keys()
    same = {name for name in began if began[name].shape == found[name].shape}
    assert all((began[name] == found[name]).all() for name in same), "the same seed, the same weights"
    assert same == began.keys()


def test_imported_weights_are_the_untrained_ones(made: Made, outcome: EvaluateOutcome):
    begun: CheckpointRef = made.before.checkpoint
    found = run(made, inputs(made).model_copy(update={"begun_with": begun}))
    untrained = {each.role: each for each in found.measured}[Role.untrained]
    assert untrained.metrics == pytest.approx(outcome.champion)


def test_a_pretrained_folder_that_is_gone_leaves_the_untrained_model_out(
    made: Made, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    config = tiny_config(*SETTINGS, f"model.pretrained={tmp_path / 'gone'}")
    found = evaluate.run(make_job(made.store, config, inputs(made)))
    assert [each.role for each in found.measured] == [Role.challenger, Role.champion]
    assert "untrained model" in capfd.readouterr().out


# --- several workers ----------------------------------------------------------------------------------------------


def run_as_rank(rank: Rank, uri: str, given: EvaluateInputs) -> EvaluateOutcome:
    return evaluate.run(make_job(DirectoryStore(Path(uri)), tiny_config(*SETTINGS), given, rank=rank))


def test_two_workers_give_the_answers_of_one(made: Made, tmp_path: Path):
    given = inputs(made, golden=golden_key(made, tmp_path))
    alone = run(made, given)
    assert alone.rows_key is not None
    expected = read_row_results(made.store, alone.rows_key)
    first, second = run_ranks(2, run_as_rank, made.store.uri, given)
    assert first == second
    results = read_row_results(made.store, alone.rows_key)
    for role in expected.roles:
        assert results.losses[role] == pytest.approx(expected.losses[role], abs=1e-3)
        assert np.abs(results.ranks[role] - expected.ranks[role]).max() <= 1, (
            "sums of vectors may differ in the last bit"
        )
    assert results.group.tolist() == expected.group.tolist()
