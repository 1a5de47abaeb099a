"""The layouts of much-used embedding models: what is exported of them is read as they are read.

The proof takes each the whole way: begun with, trained by two workers, released, trained on, and begun with again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import Inputs, ReleaseInputs, TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import RowsRef
from tasks.data.pretrained import describe
from tasks.worker import release, train
from tasks.worker.devices.base import Precision
from tasks.worker.export.export import export_model
from tasks.worker.export.texts_graph import write_exports
from tasks.worker.model.features import Side
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Exported
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tasks.worker.training.start import build_parts
from tests.support.fakes.own_process import encode_here
from tests.support.models.layouts import LAYOUTS, PROMPTS, settings_for, write_layout
from tests.support.models.texts import embed_texts
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import (
    all_rows,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

TEXTS = ["Red LAMP, Model-7", "Crème brûlée für 2 Stück; 赤い靴", "", "want a black kettle " * 30]
SIDES: tuple[Side, ...] = ("query", "item")
# A text may have as many tokens as fit into two windows of local attention, and more.
LENGTHS = ("train.max_tokens={query: 40, item: 40}", "train.sequence_tokens=48", "infer.max_tokens=40",
           "infer.sequence_tokens=48")  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders by layout, each written once."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = write_layout(name, tmp_path_factory.mktemp("layouts") / name)
        return made[name]

    return get


def test_the_models_that_the_documentation_lists_by_language_are_among_the_layouts() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "models.md").read_text()
    table = page.partition("| folder | languages |")[2].partition("\n\n")[0]
    named = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert len(named) >= 4
    assert set(named) <= set(LAYOUTS)
    unsaid = {line.split("|")[1].strip() for line in table.splitlines() if "none in the folder" in line}
    assert unsaid == PROMPTS.keys() & set(named)


def config_for(name: str, folder: Path, *overrides: str) -> Config:
    return tiny_config(*LENGTHS, *settings_for(name, folder), *overrides)


def ours(parts: ModelParts, config: Config, side: Side, precision: Precision = "fp32") -> np.ndarray:
    return embed_texts(parts, config, TEXTS, side, precision)


def theirs(folder: Path, prompt: str, longest: int) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    model.max_seq_length = longest
    return np.asarray(model.encode(TEXTS, prompt=prompt, show_progress_bar=False))


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """What a consumer has of a folder's tokenizer, apart from where it cuts texts."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    padded = tokenizer(TEXTS, padding=True, truncation=True, max_length=40)
    names = ("padding_side", "truncation_side", "model_input_names", "special_tokens_map", "chat_template")
    return {
        "class": type(tokenizer),
        "batch": dict(padded),
        "added": {number: repr(token) for number, token in tokenizer.added_tokens_decoder.items()},
        **{name: getattr(tokenizer, name) for name in names},
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_export_is_read_as_the_folder_that_the_lineage_began_with(
    folder_of: Callable[[str], Path], tmp_path: Path, name: str
):
    before, after = folder_of(name), tmp_path / "export"
    after.mkdir()
    config = config_for(name, before)
    store, rows = make_workspace(tmp_path, rows=20)
    parts = build_parts(config, [all_rows(store, [rows], config)])
    export_model(parts, config, "main-0", after)
    assert read_tokenizer(after) == read_tokenizer(before)
    for side in SIDES:
        vectors, prompt = ours(parts, config, side), getattr(parts.model.shape.prompts, side)
        for folder in (before, after):
            assert (vectors * theirs(folder, prompt, config.infer.max_tokens)).sum(axis=1).min() > 0.9999


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_traced_for_texts_of_any_length(folder_of: Callable[[str], Path], tmp_path: Path, name: str):
    config = config_for(name, folder_of(name))
    parts = build_parts(config, ())
    assert not write_exports(parts, "main-0", config.infer.max_tokens, (), ("torchscript",), tmp_path)
    found = Exported(tmp_path / FOLDER / "torchscript", threads=1)
    for side in SIDES:
        assert (ours(parts, config, side) * found.embed(TEXTS, side)).sum(axis=1).min() > 0.9999


def test_a_checkpoint_keeps_the_settings_of_a_tokenizer(folder_of: Callable[[str], Path], tmp_path: Path):
    folder = folder_of("Qwen3-Embedding-0.6B")
    config = config_for("Qwen3-Embedding-0.6B", folder, "train.epochs=1")
    store, rows = make_workspace(tmp_path, rows=40)
    first = train_model(store, config, rows)
    second = train_model(store, config, rows, parent=first.checkpoint, run_key="second")
    export_model(load_parts(store, model_of(second).checkpoint), config, "main-1", tmp_path)
    assert read_tokenizer(tmp_path) == read_tokenizer(folder)


@pytest.mark.parametrize("name", ["Qwen3-Embedding-0.6B", "modernbert-embed-base", "embeddinggemma-300m"])
def test_an_encoder_without_a_layer_of_berts_computes_in_bf16(
    folder_of: Callable[[str], Path], tmp_path: Path, name: str
):
    config = config_for(name, folder_of(name))
    parts = build_parts(config, ())
    assert (ours(parts, config, "item") * ours(parts, config, "item", "bf16")).sum(axis=1).min() > 0.98


# --- the whole way ------------------------------------------------------------------------------------------------


def train_as_rank(rank: Rank, uri: str, config: Config, inputs: Inputs, run_key: str) -> TrainOutcome:
    return train.run(make_job(DirectoryStore(Path(uri)), config, inputs, run_key=run_key, rank=rank))


def released(store: DirectoryStore, config: Config, rows: RowsRef, trained: TrainOutcome) -> Path:
    """The folder of a model that was inferred with and released; release proves it with sentence-transformers."""
    model = model_of(trained)
    inputs = ReleaseInputs(
        model=model,
        vectors=infer_vectors(store, config, rows, model).prefix,
        catalogue=make_catalogue(store, config, rows),
        rows=with_held(store, config, rows),
    )
    outcome = release.release(make_job(store, config, inputs))
    assert outcome.min_cosine > 0.9999
    assert outcome.min_query_cosine is not None
    assert outcome.min_query_cosine > 0.9999
    return store.local(outcome.model)


@pytest.mark.proof
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_trained_by_two_workers_released_twice_and_begun_with_again(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    encode_here(monkeypatch)
    before = folder_of(name)
    config = config_for(name, before)
    store, rows = make_workspace(tmp_path, rows=60, distinct=30)
    inputs = TrainInputs(rows=(rows,), history=(), parent=None)
    trained, other = run_ranks(2, train_as_rank, store.uri, config, inputs, "first")
    assert trained.checkpoint == other.checkpoint
    folder = released(store, config, rows, trained)
    parts = load_parts(store, trained.checkpoint)
    first = build_parts(config, [all_rows(store, [rows], config)])
    for side in SIDES:
        vectors, prompt = ours(parts, config, side), getattr(parts.model.shape.prompts, side)
        assert (vectors * theirs(folder, prompt, config.infer.max_tokens)).sum(axis=1).min() > 0.9999
        assert (vectors * ours(first, config, side)).sum(axis=1).min() < 0.9999, "it was trained"
    assert read_tokenizer(folder) == read_tokenizer(before)

    on = TrainInputs(rows=(rows,), history=(), parent=trained.checkpoint)
    second, _ = run_ranks(2, train_as_rank, store.uri, config, on, "second")
    assert read_tokenizer(released(store, config, rows, second)) == read_tokenizer(before)

    again = tiny_config(*LENGTHS, f"model.pretrained={folder}", "model.scratch=null", "lineage=again")
    begun = build_parts(again, ())
    assert begun.model.shape.prompts == parts.model.shape.prompts
    assert describe(folder).dense == parts.model.shape.dense
    for side in SIDES:
        assert (ours(begun, again, side) * ours(parts, config, side)).sum(axis=1).min() > 0.9999
    third, _ = run_ranks(2, train_as_rank, store.uri, again, inputs, "third")
    assert read_tokenizer(released(store, again, rows, third)) == read_tokenizer(before)
