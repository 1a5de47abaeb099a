"""Weights that don't fit their folder's encoder are refused by their headers, before a loader makes up the rest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModel

from tasks.data.canonical import ROWS
from tasks.data.encoder_weights import OF_A_TASK, check_weights, expected_tensors
from tasks.data.look import LookOptions, look
from tasks.data.pretrained import ENCODERS
from tasks.foundation.errors import ConfigError
from tests.support.models.layouts import LAYOUTS, write_layout

MINILM, QWEN = "all-MiniLM-L6-v2", "Qwen3-Embedding-0.6B"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("layouts")
    return {name: write_layout(name, made / name) for name in LAYOUTS}


def copy(folders: dict[str, Path], layout: str, to: Path) -> Path:
    return Path(shutil.copytree(folders[layout], to / "folder"))


def test_a_look_at_the_folder_of_an_encoder_names_the_command_that_begins_with_it(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"\(bert, .*--encoder"):
        look(folders[MINILM], ROWS, LookOptions())


def set_in_config(**settings: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    return change


def rewrite(by: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(by(load_file(file)), file, metadata={"format": "pt"})

    return change


def prefixed(prefix: str, **more: torch.Tensor) -> Change:
    return rewrite(lambda tensors: {f"{prefix}{name}": each for name, each in tensors.items()} | more)


def without(part: str) -> Change:
    return rewrite(lambda tensors: {name: each for name, each in tensors.items() if part not in name})


def with_tensor(name: str, *shape: int) -> Change:
    return rewrite(lambda tensors: tensors | {name: torch.zeros(shape)})


def two_encoders(folder: Path) -> None:
    rewrite(lambda t: {f"{side}.{name}": each.clone() for side in ("query", "item") for name, each in t.items()})(
        folder
    )


def quantised(folder: Path) -> None:
    rewrite(
        lambda tensors: tensors | {next(n for n in tensors if n.endswith("query.weight")): torch.zeros(32, 32).char()}
    )(folder)


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def sharded(missing: bool) -> Change:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        places = {name: names[at % 2] for at, name in enumerate(tensors)}
        for shard in names[: 1 if missing else 2]:
            save_file({n: tensors[n] for n in tensors if places[n] == shard}, folder / shard, metadata={"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))

    return change


def as_torch_file(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_object(folder: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def more_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    last = max(tokenizer["model"]["vocab"].values())
    tokenizer["model"]["vocab"] |= {f"new{number}": last + number for number in range(1, 11)}
    path.write_text(json.dumps(tokenizer))


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("biases", [False, True])
def test_the_expected_tensors_are_those_of_the_library(kind: str, biases: bool) -> None:
    """A name or shape that a newer library changes would refuse every folder of this kind."""
    layers: dict[str, Any] = {"n_layers": 2} if kind == "distilbert" else {"num_hidden_layers": 2}
    flags = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True) if biases else {}
    config = CONFIG_MAPPING[kind](**layers, **flags)
    with torch.device("meta"):
        tensors = AutoModel.from_config(config).state_dict()
    own = {name: tuple(each.shape) for name, each in tensors.items() if not OF_A_TASK.match(name)}
    assert dict(expected_tensors(json.loads(config.to_json_string(use_diff=False)))) == own


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_folder_is_taken_whole(folders: dict[str, Path], layout: str) -> None:
    taken = check_weights(folders[layout])
    facts = json.loads((folders[layout] / "config.json").read_text())
    assert taken is not None
    assert (taken.tensors, taken.prefix) == (len(dict(expected_tensors(facts))), "")


@pytest.mark.parametrize(
    ("change", "prefix"),
    [
        (prefixed("module."), "module."),
        (prefixed("0.auto_model."), "0.auto_model."),
        (prefixed("bert.", **{"cls.predictions.bias": torch.zeros(3)}), "bert."),
        (without("pooler"), ""),
        (with_tensor("classifier.weight", 2, 32), ""),
        (with_tensor("embeddings.position_ids", 1, 8), ""),
        (sharded(missing=False), ""),
        (as_torch_file, ""),
    ],
)
def test_other_names_of_the_same_weights_are_taken(
    folders: dict[str, Path], tmp_path: Path, change: Change, prefix: str
) -> None:
    folder = copy(folders, MINILM, tmp_path)
    whole = check_weights(folder)
    change(folder)
    taken = check_weights(folder)
    assert whole is not None
    assert taken is not None
    assert (taken.tensors, taken.prefix) == (whole.tensors, prefix)


@pytest.mark.parametrize(
    ("layout", "change", "said"),
    [
        (MINILM, rewrite(lambda _: {"weight": torch.zeros(2)}), "0 of the .* missing are embeddings.word_embeddings"),
        (MINILM, set_in_config(num_hidden_layers=9), "missing are encoder.layer.2.attention.self.query.weight"),
        (MINILM, set_in_config(num_hidden_layers=1), "no part of it are encoder.layer.1"),
        (MINILM, set_in_config(intermediate_size=77), "intermediate.dense.weight has .* instead of 77 x"),
        (MINILM, without("position_embeddings"), "missing are embeddings.position_embeddings.weight"),
        (MINILM, with_tensor("encoder.layer.0.mlp.gated.weight", 8, 8), "no part of it are encoder.layer.0.mlp.gated"),
        (MINILM, prefixed("0.auto_model.", **{"2.linear.weight": torch.zeros(8, 8)}), "no part of it are 2.linear"),
        (MINILM, two_encoders, "several encoders that fit, under item. and query."),
        (MINILM, quantised, "hold whole numbers"),
        (MINILM, set_in_config(auto_map={"AutoModel": "modeling.Own"}), "auto_map: code of its own"),
        (MINILM, set_in_config(position_embedding_type="relative_key"), "position_embedding_type"),
        (MINILM, set_in_config(is_decoder=True), "is_decoder"),
        (QWEN, set_in_config(is_causal=False), "is_causal: tokens that see later ones"),
        (QWEN, set_in_config(quantization_config={"bits": 4}), "quantization_config: quantised weights"),
        (MINILM, lambda f: (f / "adapter_config.json").write_text("{}"), "adapter_config.json, an adapter"),
        (MINILM, pointer, "Git LFS pointer of .* git lfs pull"),
        (MINILM, cut, "cut off or damaged.* bytes are there"),
        (MINILM, sharded(missing=True), "model-00002-of-00002.safetensors is missing"),
        (MINILM, as_object, "holds a Python object of torch.nn"),
        (MINILM, more_tokens, "the tokenizer of .* tokens, and the model's table has"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_a_count_and_a_way_out(
    folders: dict[str, Path], tmp_path: Path, layout: str, change: Change, said: str
) -> None:
    folder = copy(folders, layout, tmp_path)
    change(folder)
    with pytest.raises(ConfigError, match=said) as caught:
        check_weights(folder)
    assert str(folder) in str(caught.value)
