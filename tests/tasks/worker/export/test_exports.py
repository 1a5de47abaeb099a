"""Exports of a released model: as good as the model, opened without torch, refused by name if they are not."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import numpy_helper

from configs.schema.config import Config
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import CatalogueRef, ModelRef, RowsRef
from tasks.foundation.errors import ConfigError
from tasks.worker import release
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.export import export_proof, onnx_graph
from tasks.worker.online import encode_exported
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Exported
from tasks.worker.online.opened import ReleasedModel
from tasks.worker.search.index import Index
from tests.support.fakes.own_process import encode_here
from tests.support.workspace.jobs import (
    FEATURES,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

KINDS = {
    "plain": ("model.prompts={query: 'find: ', item: 'thing: '}", "heads.contrastive.matryoshka=[16]"),
    "crossed": tuple(FEATURES),
}
QUERIES = ("want a red shoe please", "blue lamp", "x", "want a pink bag please now now now now now now now now now now")


class Trained:
    """A trained model with its vectors; each `release` is one more of the same."""

    def __init__(self, folder: Path, overrides: tuple[str, ...]) -> None:
        self.store, self.rows = make_workspace(folder, rows=90, distinct=70)
        # At its start the interaction adds nothing, so the model is trained far from it.
        learning = ["train.learning_rate=1e-2", "train.warmup_steps=0", "train.epochs=3"]
        self.config: Config = tiny_config(*learning, *overrides)
        self.model: ModelRef = model_of(train_model(self.store, self.config, self.rows))
        self.catalogue: CatalogueRef = make_catalogue(self.store, self.config, self.rows)
        self.vectors: InferOutcome = infer_vectors(self.store, self.config, self.rows, self.model)
        self.held: tuple[RowsRef, ...] = with_held(self.store, self.config, self.rows)
        self.outcome = self.release(exports=("onnx", "onnx-int8"))
        self.folder = folder / "model"  # as it was released first
        shutil.copytree(self.store.local(self.outcome.model), self.folder)

    def release(self, **settings: object) -> ReleaseOutcome:
        """Export the model again, as if it were new."""
        config = self.config.model_copy(
            update={"release": self.config.release.model_copy(update={"gates": (), **settings})}
        )
        inputs = ReleaseInputs(
            model=self.model, vectors=self.vectors.prefix, catalogue=self.catalogue, rows=self.held, before=None
        )
        with pytest.MonkeyPatch.context() as patch:
            encode_here(patch)
            return release.run(make_job(self.store, config, inputs))

    @property
    def items(self) -> pa.Table:
        parts = Catalogue(self.store, self.catalogue)
        return pa.concat_tables(table for n in range(self.catalogue.partitions) for table in parts.items(n, 1000))

    def released(self, items: pa.Table) -> np.ndarray:
        index = Index(self.store, self.vectors.prefix, self.model.version)
        return index.at(index.places_of(items["item_id"].to_pylist()))


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Trained models by kind, each made once."""
    return functools.cache(lambda kind: Trained(tmp_path_factory.mktemp(kind), KINDS[kind]))


@pytest.fixture(params=list(KINDS))
def trained(request: pytest.FixtureRequest, trainings: Callable[[str], Trained]) -> Trained:
    return trainings(request.param)


@pytest.fixture
def plain(trainings: Callable[[str], Trained]) -> Trained:
    """Its folder in the workspace is another one after each `release`."""
    return trainings("plain")


def entries(items: pa.Table) -> list[dict[str, object]]:
    return [
        {name: row[name] for name in ("text", "price", "locale", "gift") if name in row} for row in items.to_pylist()
    ]


def test_exports_give_the_released_vectors(trained: Trained) -> None:
    onnx_, int8 = trained.outcome.exports
    assert (onnx_.kind, int8.kind) == ("onnx", "onnx-int8")
    assert onnx_.refused is None
    assert onnx_.min_cosine is not None
    assert onnx_.min_cosine > 0.9999
    assert onnx_.recall_at_10 == pytest.approx(trained.outcome.metrics["recall@10"])
    assert int8.bytes is not None
    assert onnx_.bytes is not None
    assert int8.bytes < onnx_.bytes
    items = trained.items
    model = Exported(trained.folder / FOLDER / "onnx", threads=1)
    found = model.embed(entries(items), "item")
    assert (found * trained.released(items)).sum(axis=1).min() > 0.9999
    # The order of the entries is kept, whatever their lengths.
    assert (found[::-1] * model.embed(entries(items)[::-1], "item")).sum(axis=1).min() > 0.9999


def test_an_export_embeds_queries_as_the_model_does(trained: Trained) -> None:
    ours = Exported(trained.folder / FOLDER / "onnx", threads=1)
    theirs = ReleasedModel(trained.folder)
    assert (ours.width, ours.widths) == (theirs.width, theirs.widths)
    asked = [*QUERIES, *({"text": "blue lamp", "locale": value, "price": 3.0} for value in ("de", "never seen", None))]
    found = ours.embed(asked, "query")
    assert (found * theirs.embed(asked, "query")).sum(axis=1).min() > 0.9999
    crossed = bool(trained.config.features.query)
    assert np.allclose(found[-3], found[1], atol=1e-5) != crossed, "the locale of a query counts, and its price never"


def test_a_model_that_was_released_before_keeps_its_exports(trained: Trained) -> None:
    inputs = ReleaseInputs(
        model=trained.model, vectors=trained.vectors.prefix, catalogue=trained.catalogue, rows=trained.held,
        before=None, model_sha256=trained.outcome.model_sha256,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        encode_here(patch)
        again = release.run(make_job(trained.store, trained.config, inputs))
    assert (again.model_sha256, again.exports) == (trained.outcome.model_sha256, ())
    assert (trained.store.local(again.model) / FOLDER / "onnx" / "model.onnx").is_file()


def cut_short(graph: Path) -> None:
    graph.write_bytes(graph.read_bytes()[:1000])


def other_weights(graph: Path) -> None:
    made = onnx.load(graph)
    for number, part in enumerate(made.graph.initializer):
        values = numpy_helper.to_array(part)
        if values.ndim == 2 and values.dtype.itemsize < 8:  # no constants of token types
            noise = np.random.default_rng(number).normal(size=values.shape, scale=1 if values.dtype.kind == "f" else 40)
            part.CopyFrom(numpy_helper.from_array(noise.astype(values.dtype), part.name))
    onnx.save(made, graph)


@pytest.mark.parametrize(
    ("damage", "kind", "named"),
    [
        (cut_short, "onnx", "can't be opened by onnxruntime"),
        (other_weights, "onnx", "below release.min_cosine"),
        (other_weights, "onnx-int8", "release.export_max_loss"),
    ],
)
def test_an_export_that_is_not_the_model_is_refused_by_name(
    plain: Trained,
    damage: Callable[[Path], None],
    kind: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(*given: object) -> dict[str, str]:
        folder = given[-1]
        assert isinstance(folder, Path)
        shutil.copytree(plain.folder / FOLDER / kind, folder / FOLDER / kind)
        damage(folder / FOLDER / kind / "model.onnx")
        return {}

    monkeypatch.setattr(export_proof, "write_exports", damaged)
    (refused,) = (without := plain.release(exports=(kind,))).exports
    assert named in (refused.refused or "")
    assert not (plain.store.local(without.model) / FOLDER).exists(), "the release goes on without it"
    with pytest.raises(ConfigError, match=f"{kind} is refused.*nothing was released") as caught:
        plain.release(exports=(kind,), exports_required=True)
    assert "exports_required: false" in str(caught.value)


def test_a_model_that_onnx_cannot_hold_is_refused_with_the_reason(
    plain: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1)
    refusals = plain.release(exports=("onnx", "onnx-int8")).exports
    assert ["up to 2 GiB" in (each.refused or "") for each in refusals] == [True, True]


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    plain: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"onnxscript.*millrace\[export\]"):
        plain.release(exports=("onnx",))


def test_a_process_with_torch_proves_nothing(plain: Trained, tmp_path: Path) -> None:
    assert "torch" in sys.modules
    (tmp_path / "entries.json").write_text('{"queries": [{"text": "lamp"}], "items": [{"text": "lamp"}]}')
    with pytest.raises(SystemExit, match="torch"):
        encode_exported.main(plain.folder / FOLDER / "onnx", tmp_path / "entries.json", tmp_path / "vectors.npz")
