import json
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_config
from configs.schema.model import Prompts
from tasks.data.pretrained import DenseShape, Described, describe, text_shape
from tasks.foundation.errors import ConfigError

NAMES = ("Transformer", "Pooling", "Dense", "Normalize")
DENSE = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}


def write(folder: Path, *names: str, new: bool = False, **files: Any) -> Path:
    """A folder with the modules `names`; `files` are contents by path, with `__` for `/` and without `.json`."""
    kind = "sentence_transformers." + ("base.modules.any." if new else "models.")
    modules = [
        {"path": "" if name == "Transformer" else f"{number}_{name}", "type": f"{kind}{name}"}
        for number, name in enumerate(names)
    ]
    contents = {"modules": modules, "1_Pooling__config": {"pooling_mode_mean_tokens": True}, "2_Dense__config": DENSE}
    for name, content in (contents | files).items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    (folder / "2_Dense" / "model.safetensors").touch()
    return folder


PLAIN = ("Transformer", "Pooling", "Normalize")


@pytest.mark.parametrize("new", [False, True])
def test_both_layouts_say_the_same(tmp_path: Path, new: bool):
    pooling = {"pooling_mode": "cls"} if new else {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    length: dict[str, Any] = {"tokenizer_config": {"model_max_length": 77 if new else 99}}
    if not new:
        length["sentence_bert_config"] = {"max_seq_length": 77}
    found = describe(write(tmp_path, *NAMES, new=new, **{"1_Pooling__config": pooling}, **length))
    assert found == Described(
        folder=tmp_path,
        encoder=tmp_path,
        pooling="cls",
        dense=(DenseShape(inputs=32, outputs=8, bias=True, activation="tanh"),),
        dense_folders=(tmp_path / "2_Dense",),
        longest_tokens=77,
    )


def test_a_folder_without_modules_is_an_encoder_alone(tmp_path: Path):
    assert describe(tmp_path) == Described(folder=tmp_path, encoder=tmp_path)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ({"query": "q: ", "passage": "p: "}, ("q: ", "p: ")),
        ({"query": "q: ", "document": "", "passage": "p: "}, ("q: ", "p: ")),
        ({"document": "d: ", "passage": "p: "}, ("", "d: ")),
        ({"query": None, "sts": "s: "}, ("", "")),
    ],
)
def test_prompts_are_those_of_queries_and_of_documents(
    tmp_path: Path, prompts: dict[str, str], expected: tuple[str, str]
):
    folder = write(tmp_path, *PLAIN, config_sentence_transformers={"prompts": prompts, "default_prompt_name": "sts"})
    found = describe(folder)
    assert (found.prompts.query, found.prompts.item, found.default_prompt) == (*expected, None)


@pytest.mark.parametrize(
    ("names", "files", "message"),
    [
        (
            ("Transformer", "Pooling", "Normalize", "Dense"),
            {},
            "Pooling, Normalize, Dense, where an order",
        ),
        (("Transformer", "Normalize"), {}, "Transformer, Normalize, where an order such as Transformer, Pooling"),
        (
            PLAIN,
            {"1_Pooling__config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}},
            "cls and mean",
        ),
        (PLAIN, {"1_Pooling__config": {"pooling_mode": ["cls", "max"]}}, "cls and max"),
        (PLAIN, {"1_Pooling__config": {"pooling_mode": "weightedmean"}}, "the pooling weightedmean"),
        (NAMES, {"2_Dense__config": DENSE | {"activation_function": "torch.nn.modules.activation.Mish"}}, "Mish"),
        (NAMES, {"2_Dense__config": DENSE | {"activation_function": "mine.Tanh"}}, "the activation mine.Tanh"),
        (NAMES, {"2_Dense__config": DENSE | {"use_residual": True}}, "use_residual: True"),
        (NAMES, {"2_Dense__config": DENSE | {"module_output_name": "other"}}, "module_output_name: other"),
        (PLAIN, {"sentence_bert_config": {"query_expansion": {"length": 32}}}, "query_expansion"),
        (PLAIN, {"sentence_bert_config": {"transformer_task": "fill-mask"}}, "transformer_task: fill-mask"),
        (
            PLAIN,
            {"sentence_bert_config": {"modality_config": {"text": {}, "image": {}}}},
            "for text, image",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named_with_its_file_and_a_way_out(
    tmp_path: Path, names: tuple[str, ...], files: dict[str, Any], message: str
):
    file = next(iter(files), "modules").replace("__", "/")
    with pytest.raises(ConfigError, match=rf"{file}\.json .*{message}"):
        describe(write(tmp_path, *names, **files))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sentence_transformers.models.WeightedLayerPooling", "the module sentence_transformers.models.WeightedLayer"),
        ("custom_st.Transformer", "the module custom_st.Transformer"),
        ("released_modules.FeatureTransformer", "a release with feature interaction.*continue the lineage"),
    ],
)
def test_a_module_of_another_kind_is_named(tmp_path: Path, kind: str, message: str):
    write(tmp_path, *PLAIN)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": kind, "path": ""}]))
    with pytest.raises(ConfigError, match=message):
        describe(tmp_path)


def shape(described: Described, *overrides: str) -> Any:
    return text_shape(load_config(None, overrides).model, described)


def test_the_configuration_says_prompts_and_what_the_folder_does_not(tmp_path: Path):
    alone = Described(folder=tmp_path, encoder=tmp_path)
    assert shape(alone).pooling == "mean"
    assert shape(alone, "model.pooling=last").pooling == "last"
    cls = Described(folder=tmp_path, encoder=tmp_path, pooling="cls", prompts=Prompts(query="q: "))
    assert (shape(cls).pooling, shape(cls).prompts.query) == ("cls", "q: ")
    assert shape(cls, "model.pooling=cls", "model.prompts={item: 'i: '}").prompts == Prompts(item="i: ")


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            {"pooling": "cls"},
            "model.pooling is mean, and the encoder in .* was trained with cls; set model.pooling: null",
        ),
        ({"default_prompt": "sts"}, r"has the prompt 'sts' for every text.*model\.prompts="),
        ({"pool_prompt": False, "prompts": Prompts(query="q: ")}, r"include_prompt: false.*set model\.prompts="),
    ],
)
def test_a_contradiction_is_refused(tmp_path: Path, described: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        shape(Described(folder=tmp_path, encoder=tmp_path, **described), "model.pooling=mean")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules": [{"path": "../other", "type": "sentence_transformers.models.Transformer"}]}, "'../other'"),
        ({"modules": [{"path": "\0", "type": "sentence_transformers.models.Transformer"}]}, "a module in"),
        ({"1_Pooling__config": {"pooling_mode": 5}}, "pooling_mode: 5"),
        ({"1_Pooling__config": {"pooling_mode": [["mean"]]}}, "the pooling \\['mean'\\]"),
        ({"config_sentence_transformers": {"prompts": 5}}, "prompts: 5"),
        ({"config_sentence_transformers": {"prompts": {"query": ["q"]}}}, "query: \\['q'\\]"),
        ({"config_sentence_transformers": {"default_prompt_name": []}}, "default_prompt_name: \\[\\]"),
        ({"sentence_bert_config": {"modality_config": 5}}, "modality_config: 5"),
        ({"2_Dense__config": DENSE | {"bias": "no"}}, "bias: 'no'"),
    ],
)
def test_a_setting_of_another_kind_is_named(tmp_path: Path, files: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=rf"{tmp_path}/.*\.json has .*{message}"):
        describe(write(tmp_path, *NAMES, **files))


def test_a_file_of_endless_levels_is_named(tmp_path: Path):
    (write(tmp_path, *PLAIN) / "modules.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"modules\.json is not"):
        describe(tmp_path)
