import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointState, RowsRef
from tasks.worker import train
from tasks.worker.evaluation import solve as solving
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import load_parts
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import change_rows, make_job, make_workspace, tensors_of, tiny_config, train_model

HEAD = "heads.classification={weight: 0.1, input: query, negative_max: 2, positive_min: 4"
SOLVED = (HEAD + ", refit_rows: 500}", "train.learning_rate=5e-5")
WORDS = ("broken", "awful", "refund")


def few_are_bad(rows: pa.Table) -> pa.Table:
    """One row in sixteen has a low label, and a word that no other row has."""
    bad = [number % 16 == 3 for number in range(rows.num_rows)]
    queries = [f"{query} {WORDS[number % 3]}" if bad[number] else query
               for number, query in enumerate(rows["query"].to_pylist())]  # fmt: skip
    labels = pa.array(np.where(bad, 1.0, 5.0))
    rows = rows.set_column(rows.column_names.index("query"), "query", pa.array(queries))
    return rows.set_column(rows.column_names.index("label"), "label", labels)


def imbalanced(folder: Path) -> tuple[DirectoryStore, RowsRef]:
    store, rows = make_workspace(folder, rows=640)
    return store, change_rows(store, rows, "2026-02", few_are_bad, folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirectoryStore, RowsRef, TrainOutcome]:
    store, rows = imbalanced(tmp_path_factory.mktemp("refit"))
    return store, rows, train_model(store, tiny_config(*SOLVED), rows)


Made = tuple[DirectoryStore, RowsRef, TrainOutcome]


def test_the_solved_head_finds_the_rare_class_that_steps_do_not(made: Made, tmp_path: Path, monkeypatch):
    _, _, outcome = made
    store, rows = imbalanced(tmp_path)
    monkeypatch.setattr(train, "solve_heads", lambda *args, **options: None)
    by_steps = train_model(store, tiny_config(*SOLVED), rows)
    assert by_steps.head is None
    assert by_steps.curve[-1].metrics["macro_f1"] < 0.5, "it always names the larger class"
    found = outcome.curve[-1].metrics
    assert found["auc"] > 0.95
    assert found["macro_f1"] > 0.9
    assert outcome.head is not None
    assert (outcome.head.step, outcome.head.rows) == (outcome.last_step, min(500, outcome.rows_trained))
    assert sum(outcome.head.class_rows) == outcome.head.rows
    assert 0 < outcome.head.calibration_rows < 0.2 * outcome.head.rows
    ours, theirs = (tensors_of(each, one.checkpoint) for each, one in ((store, by_steps), (made[0], outcome)))
    assert {name for name in ours if not ours[name].equal(theirs[name])} == {"classifier.weight", "classifier.bias"}


def test_the_threshold_is_that_of_the_checkpoint_and_goes_with_the_weights_it_is_of(made: Made, tmp_path: Path):
    """Its probabilities are of other weights after a step: kept, it would name rows by chance."""
    store, rows, outcome = made
    assert outcome.head is not None
    assert load_parts(store, outcome.checkpoint).model.threshold == outcome.head.threshold != 0.5
    shutil.copytree(store.root, tmp_path / "copy")
    copy = DirectoryStore(tmp_path / "copy")
    few = change_rows(copy, rows, "2026-03", lambda table: table.slice(0, 32), tmp_path)
    later = train_model(copy, tiny_config(*SOLVED), few, parent=outcome.checkpoint, run_key="later")
    assert later.head is None, "a class has too few rows"
    model = load_parts(copy, later.checkpoint).model
    assert (model.threshold, model.solved) == (0.5, None)


def test_a_run_killed_while_the_head_is_solved_ends_the_same(made: Made, tmp_path: Path, monkeypatch):
    _, _, outcome = made
    store, rows = imbalanced(tmp_path)
    config = tiny_config(*SOLVED)
    solve = solving.solve

    def killed(*args) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(solving, "solve", killed)
    with pytest.raises(KeyboardInterrupt):
        train_model(store, config, rows)
    monkeypatch.setattr(solving, "solve", solve)
    again = train_model(store, config, rows)
    assert again.resumed_at_step is not None
    assert (again.checkpoint.sha256, again.head) == (outcome.checkpoint.sha256, outcome.head)


def test_the_history_gives_rows_too_and_the_newest_count(made: Made, tmp_path: Path):
    shutil.copytree(made[0].root, tmp_path / "copy")
    store, older = DirectoryStore(tmp_path / "copy"), made[1]
    newer = change_rows(store, older, "2026-03", lambda rows: rows.slice(0, 160), tmp_path)
    inputs = TrainInputs(rows=(newer,), history=(older,), parent=made[2].checkpoint)
    outcome = train.run(make_job(store, tiny_config(*SOLVED), inputs, run_key="next"))
    assert outcome.head is not None
    assert outcome.rows_trained < outcome.head.rows == 500
    assert made[2].head is not None
    assert outcome.head.calibration_rows > made[2].head.calibration_rows, "those of both spans"
    state = CheckpointState.model_validate_json((store.local(outcome.checkpoint.prefix) / "state.json").read_text())
    assert set(state.spared) == {"2026-02", "2026-03"}


def test_a_class_with_too_few_rows_leaves_the_head_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store, rows = make_workspace(tmp_path, rows=60)
    few = change_rows(store, rows, "2026-02", few_are_bad, tmp_path)
    assert train_model(store, tiny_config(*SOLVED), few).head is None
    assert "a class has" in capsys.readouterr().out


def test_a_rare_class_of_one_query_leaves_the_head_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def one_query_is_bad(rows: pa.Table) -> pa.Table:
        bad = np.arange(rows.num_rows) % 20 == 0
        queries = np.where(bad, "gift card", np.array(rows["query"].to_pylist(), dtype=object))
        rows = rows.set_column(rows.column_names.index("query"), "query", pa.array(queries, pa.string()))
        labels = pa.array(np.where(bad, 1.0, 5.0))
        return rows.set_column(rows.column_names.index("label"), "label", labels)

    store, rows = make_workspace(tmp_path, rows=600)
    rows = change_rows(store, rows, "2026-02", one_query_is_bad, tmp_path)
    assert train_model(store, tiny_config(*SOLVED), rows).head is None
    assert "in one fold" in capsys.readouterr().out


def one_of_two(rank: Rank, root: str, ref: dict) -> None:
    store = DirectoryStore(Path(root))
    inputs = TrainInputs(rows=(RowsRef.model_validate(ref),), history=(), parent=None)
    train.run(make_job(store, tiny_config(*SOLVED, "train.workers=2"), inputs, rank=rank))


def test_two_workers_solve_the_head_of_one(made: Made, tmp_path: Path):
    _, _, alone = made
    store, rows = imbalanced(tmp_path)
    run_ranks(2, one_of_two, str(store.root), rows.model_dump(mode="json"))
    (folder,) = store.path("lineages/main").iterdir()
    ours, theirs = (load_file(each / "model.safetensors") for each in (folder, made[0].local(alone.checkpoint.prefix)))
    for name in ("classifier.weight", "classifier.bias"):
        assert np.allclose(ours[name].numpy(), theirs[name].numpy(), rtol=0.02, atol=0.02), name
