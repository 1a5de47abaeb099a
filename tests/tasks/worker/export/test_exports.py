"""Exports of a released model, of every kind: as good as the model, or refused by name."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from configs.schema.config import Config
from configs.schema.stages import ExportKind
from infra.store.manifest import CorruptFolder
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import CatalogueRef, ModelRef, RowsRef
from tasks.foundation.errors import ConfigError
from tasks.worker import release
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.export import export_proof, texts_graph
from tasks.worker.model import tokens
from tasks.worker.online import encode_exported, kinds, neuron, onnx, opened
from tasks.worker.online.export_folder import ABOUT, FOLDER
from tasks.worker.online.exported import Exported
from tasks.worker.online.kinds import KINDS
from tasks.worker.online.opened import ReleasedModel
from tasks.worker.search.index import Index
from tasks.worker.training.checkpoint import ModelParts, load_released
from tests.planes.source import ROOT
from tests.support.fakes.neuron import inference
from tests.support.fakes.own_process import encode_here
from tests.support.models.layouts import settings_for, write_layout
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

DECODER = "Qwen3-Embedding-0.6B"
LENGTHS = ("train.max_tokens={query: 40, item: 40}", "train.sequence_tokens=48", "infer.max_tokens=40",
           "infer.sequence_tokens=48")  # fmt: skip
MODELS = {
    "plain": ("model.prompts={query: 'find: ', item: 'thing: '}", "heads.contrastive.matryoshka=[16]"),
    "crossed": tuple(FEATURES),
    "decoder": LENGTHS,
}
EXACT = [kind for kind in KINDS if KINDS[kind].exact]
QUERIES = ("want a red shoe please", "blue lamp", "x", "want a pink bag please now now now now now now now now now now")


class Trained:
    """A trained model with its vectors; each `release` is one more of the same."""

    def __init__(self, folder: Path, overrides: tuple[str, ...]) -> None:
        self.store, self.rows = make_workspace(folder, rows=90, distinct=70)
        # At its start the interaction adds nothing, so the model is trained far from it.
        learning = ["train.learning_rate=1e-2", "train.warmup_steps=0", "train.epochs=3"]
        if overrides is LENGTHS:
            overrides = (*LENGTHS, *settings_for(DECODER, write_layout(DECODER, folder / DECODER)))
        self.config: Config = tiny_config(*learning, *overrides)
        self.model: ModelRef = model_of(train_model(self.store, self.config, self.rows))
        self.catalogue: CatalogueRef = make_catalogue(self.store, self.config, self.rows)
        self.vectors: InferOutcome = infer_vectors(self.store, self.config, self.rows, self.model)
        self.held: tuple[RowsRef, ...] = with_held(self.store, self.config, self.rows)
        self.outcome = self.release(exports=tuple(KINDS))
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
            return release.release(make_job(self.store, config, inputs))

    @property
    def items(self) -> pa.Table:
        parts = Catalogue(self.store, self.catalogue)
        return pa.concat_tables(table for n in range(self.catalogue.partitions) for table in parts.items(n, 1000))

    def released(self, items: pa.Table) -> np.ndarray:
        index = Index(self.store, self.vectors.prefix, self.model.version)
        return index.at(index.places_of(items["item_id"].to_pylist()))


@pytest.fixture(scope="module", autouse=True)
def _neuron_sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The stand-in of torch-neuronx, for this process and those that it starts."""
    site = str(inference.put(tmp_path_factory.mktemp("sdk")))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", os.pathsep.join([site, str(ROOT)]))
        yield
    sys.modules.pop("torch_neuronx", None)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Trained models by name, each made once."""
    return functools.cache(lambda name: Trained(tmp_path_factory.mktemp(name), MODELS[name]))


@pytest.fixture(params=list(MODELS))
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


def graph_files(folder: Path) -> list[Path]:
    """The files of an export's graph, the largest first."""
    found = [path for path in folder.iterdir() if path.name not in (ABOUT, tokens.FILE)]
    return sorted(found, key=lambda path: -path.stat().st_size)


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_measured_against_the_release(trained: Trained, kind: ExportKind) -> None:
    (found,) = (each for each in trained.outcome.exports if each.kind == kind)
    assert found.refused is None
    assert found.min_cosine is not None
    assert found.min_cosine > (0.9999 if KINDS[kind].exact else 0.999)
    one_query = 0.06  # of the fewest, the decoder's eighteen: weights in int8 may move an item across the tenth place
    tolerance = 0.005 if KINDS[kind].exact else one_query
    assert found.recall_at_10 == pytest.approx(trained.outcome.metrics["recall@10"], abs=tolerance)
    assert found.bytes == sum(path.stat().st_size for path in graph_files(trained.folder / FOLDER / kind))
    assert found.p50_ms is not None
    assert found.p99_ms is not None
    assert 0 < found.p50_ms <= found.p99_ms


def test_weights_in_int8_are_smaller(trained: Trained) -> None:
    sizes = {each.kind: each.bytes or 0 for each in trained.outcome.exports}
    assert 0 < sizes["onnx-int8"] < sizes["onnx"]


@pytest.mark.parametrize("kind", EXACT)
def test_an_export_gives_the_released_vectors(trained: Trained, kind: ExportKind) -> None:
    items = trained.items
    model = Exported(trained.folder / FOLDER / kind, threads=1)
    found = model.embed(entries(items), "item")
    assert (found * trained.released(items)).sum(axis=1).min() > 0.9999
    # The order of the entries is kept, whatever their lengths.
    assert (found[::-1] * model.embed(entries(items)[::-1], "item")).sum(axis=1).min() > 0.9999


@pytest.mark.parametrize("kind", EXACT)
def test_an_export_embeds_queries_as_the_model_does(trained: Trained, kind: ExportKind) -> None:
    ours = Exported(trained.folder / FOLDER / kind, threads=1)
    theirs = ReleasedModel(trained.folder)
    assert (ours.width, ours.widths) == (theirs.width, theirs.widths)
    asked = [*QUERIES, *({"text": "blue lamp", "locale": value, "price": 3.0} for value in ("de", "never seen", None))]
    found = ours.embed(asked, "query")
    assert (found * theirs.embed(asked, "query")).sum(axis=1).min() > 0.9999
    crossed = bool(trained.config.features.query)
    assert np.allclose(found[-3], found[1], atol=1e-5) != crossed, "the locale of a query counts, and its price never"


@pytest.mark.parametrize("trained", ["crossed", "decoder"], indirect=True)
def test_the_same_model_gives_the_same_bytes(trained: Trained, tmp_path: Path) -> None:
    parts = load_released(trained.store, trained.model)
    config = trained.config
    widths, longest = config.heads.matryoshka, config.infer.max_tokens
    assert not texts_graph.write_exports(parts, trained.model.version, longest, widths, tuple(KINDS), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]
    before = trained.folder / FOLDER
    for path in [each for each in before.rglob("*") if each.is_file()]:
        assert (tmp_path / FOLDER / path.relative_to(before)).read_bytes() == path.read_bytes()
        assert str(Path.cwd()).encode() not in path.read_bytes(), "no path of this machine"


def test_a_model_that_was_released_before_keeps_its_exports(trained: Trained) -> None:
    inputs = ReleaseInputs(
        model=trained.model, vectors=trained.vectors.prefix, catalogue=trained.catalogue, rows=trained.held,
        before=None, model_sha256=trained.outcome.model_sha256,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        encode_here(patch)
        again = release.release(make_job(trained.store, trained.config, inputs))
    assert (again.model_sha256, again.exports) == (trained.outcome.model_sha256, ())
    assert all((trained.store.local(again.model) / FOLDER / kind / ABOUT).is_file() for kind in KINDS)


Damage = Callable[..., dict[ExportKind, str]]


def cut_short(first: Path, parts: ModelParts, *given: Any) -> dict[ExportKind, str]:
    """The files of the first release, which another export would write again, each without its end."""
    shutil.copytree(first / FOLDER, given[-1] / FOLDER, dirs_exist_ok=True)
    for path in (given[-1] / FOLDER).glob("*/*"):
        if path.name not in (ABOUT, tokens.FILE):
            path.write_bytes(path.read_bytes()[: min(1000, path.stat().st_size // 2)])
    return {}


def other_weights(_first: Path, parts: ModelParts, *given: Any) -> dict[ExportKind, str]:
    other = copy.deepcopy(parts.model)
    torch.manual_seed(5)
    for weight in other.parameters():
        torch.nn.init.normal_(weight.data)
    return texts_graph.write_exports(dataclasses.replace(parts, model=other), *given)


@pytest.fixture(scope="module")
def refusals(trainings: Callable[[str], Trained]) -> Callable[[Damage], dict[str, str]]:
    """The sentences by kind of a release whose every export was damaged."""

    def released(damage: Damage) -> dict[str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export_proof, "write_exports", functools.partial(damage, trainings("plain").folder))
            without = trainings("plain").release(exports=tuple(KINDS))
        assert not (trainings("plain").store.local(without.model) / FOLDER).exists(), "the release goes on without them"
        return {each.kind: each.refused or "" for each in without.exports}

    return functools.cache(released)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [cut_short, other_weights])
def test_an_export_that_is_not_the_model_is_refused_by_name(
    refusals: Callable[[Damage], dict[str, str]], damage: Damage, kind: ExportKind
) -> None:
    named = "below release.min_cosine" if KINDS[kind].exact else "more than release.export_max_loss"
    named = f"can't be opened by {KINDS[kind].runtime}" if damage is cut_short else named
    assert named in refusals(damage)[kind]


def test_a_refused_export_stops_the_release_if_it_is_required(plain: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "MOST_BYTES", 1)
    with pytest.raises(ConfigError, match=r"onnx-int8 .*nothing") as caught:
        plain.release(exports=("onnx-int8",), exports_required=True)
    assert "exports_required: false" in str(caught.value)


def test_a_model_that_onnx_cannot_hold_is_refused_with_the_reason(
    plain: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "MOST_BYTES", 1)
    refusals = plain.release(exports=("onnx", "onnx-int8")).exports
    assert ["up to 2 GiB" in (each.refused or "") for each in refusals] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_package_is_named_with_the_command_that_brings_it(
    plain: Trained, kind: ExportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"release.exports: {kind}") as caught:
        plain.release(exports=(kind,))
    assert KINDS[kind].install in str(caught.value)
    assert all(name in str(caught.value) for name in KINDS[kind].makers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_with_a_package_that_a_kind_must_not_need_proves_nothing(
    plain: Trained, kind: ExportKind, tmp_path: Path
) -> None:
    assert set(KINDS[kind].unneeded) & sys.modules.keys()
    (tmp_path / "entries.json").write_text('{"queries": [{"text": "lamp"}], "items": [{"text": "lamp"}]}')
    with pytest.raises(SystemExit, match="|".join(KINDS[kind].unneeded)):
        encode_exported.main(plain.folder / FOLDER / kind, tmp_path / "entries.json", tmp_path / "vectors.npz")


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("return torch.from_file('/etc/passwd', False, 9)", "has the operation torch.from_file"),
        ("return ops.aten.save(input_ids, 'x')", "has the operation ops.aten.save"),
        ("if bool(input_ids):\n      return input_ids\n    return attention_mask", "has If in its code"),
        ("return input_ids\n  def __setstate__(self, x: int) -> NoneType:\n    return None", "a function __setstate__"),
    ],
)
def test_a_torchscript_file_that_does_more_than_compute_is_not_opened(
    plain: Trained, tmp_path: Path, code: str, named: str
) -> None:
    shutil.copytree(plain.folder / FOLDER / "torchscript", folder := tmp_path / "foreign")
    file = folder / "model.pt"
    with zipfile.ZipFile(file) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    (program,) = (name for name in held if "/code/" in name)
    text = held[program].decode()
    held[program] = f"{text[: text.index('    real =')]}    {code}\n".encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in held.items():
            archive.writestr(name, value)
    with pytest.raises(CorruptFolder, match=named):
        Exported(folder, threads=1)


def test_the_server_takes_the_first_export_whose_runtime_is_installed(
    plain: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened._encoder(plain.folder).kind == "onnx"
    monkeypatch.setattr(
        torch, "set_num_threads", lambda _: None
    )  # later tests would compute with threads that can't begin
    lacking: set[str] = set()
    monkeypatch.setattr(kinds, "find_spec", lambda name: None if name in lacking else importlib.util.find_spec(name))
    for package, taken in (("onnxruntime", "openvino"), ("openvino", "torchscript")):
        lacking.add(package)
        assert opened._encoder(plain.folder).kind == taken


@pytest.mark.shows("exports for Inferentia2")
def test_a_graph_of_a_neuron_core_takes_its_own_length_alone(plain: Trained) -> None:
    folder = plain.folder / FOLDER / "neuron"
    lengths = neuron.lengths_of(plain.config.infer.max_tokens)
    assert {path.name for path in graph_files(folder)} == {f"model-{length}.pt" for length in lengths}
    importlib.import_module("torch_neuronx")
    graph = torch.jit.load(str(folder / f"model-{lengths[0]}.pt"))
    ids = torch.ones(1, lengths[0] + 1, dtype=torch.int32)
    assert graph(ids[:, 1:], ids[:, 1:]).shape == (1, Exported(folder, threads=1).width)
    with pytest.raises(RuntimeError, match="compiled for"):
        graph(ids, ids)
    (folder_of_longest := folder / f"model-{lengths[-1]}.pt").rename(hidden := folder / "away.pt")
    try:
        with pytest.raises(CorruptFolder, match="no graph"):
            Exported(folder, threads=1).embed(["want a pink bag please " * 40], "query")
    finally:
        hidden.rename(folder_of_longest)


def test_a_length_that_cannot_be_compiled_leaves_nothing(
    plain: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace(func: Any, given: tuple[torch.Tensor, ...], **settings: Any) -> Any:
        if given[0].shape[1] > 8:
            raise RuntimeError("NCC_EXTP004: the graph has too many instructions")
        return inference.trace(func, given, **settings)

    monkeypatch.setattr(importlib.import_module("torch_neuronx"), "trace", trace)
    monkeypatch.setattr(neuron, "lengths_of", lambda longest: [8, longest])
    parts = load_released(plain.store, plain.model)
    refused = texts_graph.write_exports(parts, "v", plain.config.infer.max_tokens, (), ("neuron",), tmp_path)
    assert "NCC_EXTP004" in refused["neuron"]
    assert not list((tmp_path / FOLDER).iterdir())


def test_lengths_of_graphs_double_up_to_the_longest_text() -> None:
    assert neuron.lengths_of(24) == [24]
    assert neuron.lengths_of(32) == [32]
    assert neuron.lengths_of(100) == [32, 64, 100]
