"""The evaluation of a model after a change of all items: new prices, ids in another form."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role, Verdict
from tasks.contracts.jobs import EvaluateInputs, InferInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import CatalogueRef, ModelRef, RowsRef
from tasks.contracts.runs import RunPlan
from tasks.judging.judge_run import judge_evaluation
from tasks.worker import evaluate
from tasks.worker.catalogue.reuse import as_matrix
from tests.support.workspace.jobs import (
    FEATURES,
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
)

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


@dataclasses.dataclass(frozen=True)
class Repriced:
    """A catalogue of 400 items in which a model was released, and a later one with other ids, contents or both."""

    store: DirectoryStore
    rows: RowsRef
    model: ModelRef
    vectors: str  # folder of the vectors of the catalogue before
    settings: tuple[str, ...]

    def evaluated(
        self, change: Callable[[pa.Table], pa.Table], span: str, noise: float, folder: Path
    ) -> tuple[EvaluateOutcome, Verdict]:
        """Evaluate the model with so much noise in its new vectors, after a change of all items."""
        config = tiny_config(*self.settings)
        later = change_rows(self.store, self.rows, span, change, folder)
        catalogue = make_catalogue(self.store, config, later)
        new = self.model.model_copy(update={"version": f"{folder.name}-m"})
        made = infer_alone(make_job(self.store, config, InferInputs(catalogue=catalogue, model=new), folder.name))
        blur(self.store, made.prefix, noise)
        inputs = EvaluateInputs(
            rows=with_held(self.store, config, later), catalogue=catalogue, challenger=new,
            challenger_vectors=made.prefix, champion=self.model, champion_vectors=self.vectors,
        )  # fmt: skip
        outcome = evaluate.run(make_job(self.store, config, inputs, folder.name))
        plan = RunPlan(
            run_key=folder.name, span=later.span, window=(later.span,), history=(), parent=None,
            workspace=self.store.uri, config=config,
        )  # fmt: skip
        (verdict, *_) = judge_evaluation(self.store, plan, outcome).verdicts
        return outcome, verdict


def blur(store: DirectoryStore, prefix: str, noise: float) -> None:
    """Add noise to released vectors, as of a worse model."""
    manifest = json.loads((store.path(prefix) / "MANIFEST.json").read_text())
    random = np.random.default_rng(3)
    for file in manifest["files"]:
        path = store.path(prefix) / file["name"]
        table = pq.read_table(path)
        vectors = as_matrix(table["vector"])
        vectors = vectors + noise * random.standard_normal(vectors.shape).astype(np.float32) / vectors.shape[1] ** 0.5
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        pq.write_table(table.set_column(table.column_names.index("vector"), "vector", column), path)
        file |= {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (store.path(prefix) / "MANIFEST.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def repriced(tmp_path_factory: pytest.TempPathFactory) -> Repriced:
    store, rows = make_workspace(tmp_path_factory.mktemp("repriced"), rows=1200, distinct=400)
    gate = ("{metric: recall@10, direction: higher, threshold: -0.02, baseline: champion, confidence: 0.95, "
            "severity: critical}")  # fmt: skip
    settings = (*FEATURES, "train.epochs=3", "evaluate.corpus_items=50", f"evaluate.gates=[{gate}]")
    model = model_of(train_model(store, tiny_config(*settings), rows))
    vectors = infer_vectors(store, tiny_config(*settings), rows, model).prefix
    return Repriced(store, rows, model, vectors, settings)


HIGHEST = 26.0  # price that the model was trained on; higher ones are clipped to it


def features(store: DirectoryStore, catalogue: CatalogueRef) -> dict[str, tuple[Any, ...]]:
    """The features of each item, as the model reads them."""
    paths = sorted(store.path(catalogue.prefix).glob("part-*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return {
        row["item_id"]: (min(row["price"], HIGHEST) if row["price"] else None, row["locale"], row["gift"])
        for row in rows
    }


def dearer(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("price"), "price", pc.add(table["price"], 3.0))


def shouted(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("item_id"), "item_id", pc.utf8_upper(table["item_id"]))


def test_a_worse_model_is_refused_and_an_equal_one_is_not_after_new_prices_of_all_items(
    repriced: Repriced, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    store, config = repriced.store, tiny_config(*repriced.settings)
    later = change_rows(store, repriced.rows, "2026-06", dearer, tmp_path)
    then, now = (features(store, make_catalogue(store, config, rows)) for rows in (repriced.rows, later))
    count = sum(then[name] != now[name] for name in now)
    assert 0 < count < 400, "not one without a price, nor above the scale"
    for name, noise, answers in (("worse", 1.5, {"fail"}), ("equal", 0.0, {"pass", "undecided"})):
        outcome, verdict = repriced.evaluated(dearer, "2026-06", noise, tmp_path / name)
        assert (outcome.shared_items, verdict.shared) == ({Role.champion: 400}, 1.0)
        assert outcome.embedded_again == {Role.champion: count}, "those that it reads otherwise"
        assert f"{count} changed items" in capfd.readouterr().out
        assert (verdict.answer in answers, verdict.refuses) == (True, name == "worse"), verdict.sentence
        if name == "equal":
            assert outcome.champion is not None
            assert outcome.challenger["mrr@10"] == pytest.approx(outcome.champion["mrr@10"], abs=0.01)


def test_ids_in_another_form_leave_nothing_to_compare_and_refuse(repriced: Repriced, tmp_path: Path):
    outcome, verdict = repriced.evaluated(shouted, "2026-07", 0.0, tmp_path / "ids")
    assert (outcome.shared_items, outcome.embedded_again) == ({Role.champion: 0}, {})
    assert "recall@1" not in outcome.challenger, "no item competes"
    assert (verdict.answer, verdict.refuses, verdict.shared, verdict.value) == ("undecided", True, 0.0, None)
    assert "catalogue's 400 items" in verdict.sentence
