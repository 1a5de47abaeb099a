"""Heads of labels and weights of rows, through whole runs of training."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import RowsRef
from tasks.foundation.errors import ConfigError, DataError
from tasks.worker.evaluation import refit
from tasks.worker.training.checkpoint import load_parts
from tests.support.workspace.jobs import change_rows, make_workspace, tiny_config, train_model

COLOURS = ("red", "blue", "green", "black", "white", "grey", "pink")
HEADS = (
    f"heads.multiclass={{weight: 0.1, input: query, column: colour, classes: [{', '.join(COLOURS)}], refit_rows: 150}}",
    "heads.regression={weight: 0.1, input: pair, column: letters, low: 3, high: 5, refit_rows: 150}",
    "train.row_weight=worth",
)


def labelled(rows: pa.Table) -> pa.Table:
    """With the colour of each query, the letters of its name for three rows of four, and odd rows that count more."""
    colours = [query.split()[2] for query in rows["query"].to_pylist()]
    letters = [None if number % 4 == 0 else float(len(each)) for number, each in enumerate(colours)]
    rows = rows.append_column("colour", pa.array(colours)).append_column("letters", pa.array(letters, pa.float64()))
    return rows.append_column("worth", pa.array(np.where(np.arange(rows.num_rows) % 2, 3.0, 0.5)))


def workspace(folder: Path) -> tuple[DirectoryStore, RowsRef]:
    store, rows = make_workspace(folder, rows=240)
    return store, change_rows(store, rows, "2026-02", labelled, folder)


Made = tuple[DirectoryStore, RowsRef, TrainOutcome]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    store, rows = workspace(tmp_path_factory.mktemp("labels"))
    return store, rows, train_model(store, tiny_config(*HEADS), rows)


def test_solved_heads_find_what_the_texts_say_and_the_checkpoint_knows_it(made: Made):
    store, _, outcome = made
    found = outcome.curve[-1].metrics
    assert found["multiclass_macro_f1"] > 0.9 > outcome.curve[0].metrics["multiclass_macro_f1"]
    assert found["rmse"] < 0.2
    assert set(outcome.label_heads) == {"multiclass", "regression"}
    assert outcome.label_heads["multiclass"].rows == 150
    model = load_parts(store, outcome.checkpoint).model
    assert model.labels_solved == outcome.label_heads
    assert model.shape.label_heads["multiclass"].meaning == {"classes": list(COLOURS)}


def test_a_run_killed_while_a_head_is_solved_ends_the_same(made: Made, tmp_path: Path, monkeypatch):
    store, rows = workspace(tmp_path)
    solve = refit.solve_label_head

    def killed(*args) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tasks.worker.evaluation.refit.solve_label_head", killed)
    with pytest.raises(KeyboardInterrupt):
        train_model(store, tiny_config(*HEADS), rows)
    monkeypatch.setattr("tasks.worker.evaluation.refit.solve_label_head", solve)
    again = train_model(store, tiny_config(*HEADS), rows)
    assert again.resumed_at_step is not None
    assert (again.checkpoint.sha256, again.label_heads) == (made[2].checkpoint.sha256, made[2].label_heads)


def test_only_the_proportions_of_weights_matter(made: Made, tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=240)

    def doubled(table: pa.Table) -> pa.Table:
        table = labelled(table)
        worth = pa.array(4.0 * table["worth"].to_numpy())
        return table.set_column(table.column_names.index("worth"), "worth", worth)

    heavier = change_rows(store, rows, "2026-02", doubled, tmp_path)
    outcome = train_model(store, tiny_config(*HEADS), heavier)
    assert outcome.losses == made[2].losses


def test_classes_in_another_order_are_another_lineage(made: Made, tmp_path: Path):
    shutil.copytree(made[0].root, tmp_path / "copy")
    turned = HEADS[0].replace("red, blue", "blue, red")
    with pytest.raises(ConfigError, match="has label_heads"):
        train_model(
            DirectoryStore(tmp_path / "copy"), tiny_config(turned, *HEADS[1:]), made[1], made[2].checkpoint, "x"
        )


@pytest.mark.parametrize(
    ("worth", "message"),
    [(0.0, "every row has the weight 0 in column 'worth'"), (-1.0, r"row '2026-01-\d+' has the weight -1.0")],
)
def test_weights_that_teach_nothing_stop_the_training(tmp_path: Path, worth: float, message: str):
    store, rows = make_workspace(tmp_path, rows=40)
    ref = change_rows(
        store, rows, "2026-02", lambda t: t.append_column("worth", pa.array([worth] * t.num_rows)), tmp_path
    )
    with pytest.raises(DataError, match=message):
        train_model(store, tiny_config("train.row_weight=worth"), ref)
