"""Exports a model as a folder that sentence-transformers and transformers load unchanged.

The layout is sentence-transformers' own: encoder and tokenizer at the top, one folder per module, modules.json. The
classification head and label heads are in folders that the embedding does not need. Loading a head takes only
safetensors and JSON; `SCORING` is the code, shown in the model card and checked by release.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import nn

from configs.schema.config import Config
from configs.schema.training import ClassificationHead
from tasks.data.pretrained import Activation, to_names
from tasks.worker.model import features, released_code, tokens
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.label_heads import LABEL_TASKS, head_inputs
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.tokenised import lower_cases, write_settings

LOADING = """\
import json
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file

settings = json.loads(Path("FOLDER/HEAD/config.json").read_text(encoding="utf-8"))
head = load_file("FOLDER/HEAD/model.safetensors")
inputs = INPUTS
outputs = inputs @ head["weight"].T + head["bias"]
"""


def write_label_heads(model: EmbeddingModel, folder: Path) -> None:
    """Write each label head into an exported model's folder."""
    for name, shape in model.shape.label_heads.items():
        (folder / name).mkdir()
        weights = model.label_heads[name].state_dict()
        save_arrays({key: value.detach().cpu().numpy() for key, value in weights.items()}, _weights(folder, name))
        settings: dict[str, Any] = {"input": shape.input, "outputs": shape.outputs, **shape.meaning}
        (folder / name / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def label_scoring_code(model: EmbeddingModel, name: str, folder: str) -> str:
    """Return the model card's Python snippet that applies a label head to `queries`, and to `items` if it sees them.

    The result is `says`, a value for each row.
    """
    loading = LOADING.replace("FOLDER", folder).replace("HEAD", name)
    return loading.replace("INPUTS", INPUTS[model.shape.label_heads[name].input]) + LABEL_TASKS[name].scoring


def exported_outputs(folder: Path, name: str, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the outputs of a head in an exported folder, float32 (rows, outputs).

    Args:
        queries: float32 (rows, width), unit vectors.
        items: float32 (rows, width), unit vectors of the items in the same rows.
    """
    settings, head = (
        json.loads((folder / name / "config.json").read_text(encoding="utf-8")),
        load_file(_weights(folder, name)),
    )
    found: np.ndarray = head_inputs(settings["input"], queries, items) @ head["weight"].T + head["bias"]
    return found


def _weights(folder: Path, name: str) -> Path:
    return folder / name / "model.safetensors"


FOLDER = "classification"
SCORING = """\
import json
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file

settings = json.loads(Path("FOLDER/classification/config.json").read_text(encoding="utf-8"))
head = load_file("FOLDER/classification/model.safetensors")
inputs = INPUTS
logits = inputs @ head["weight"].T + head["bias"]
probability = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))  # of class 1
named = probability >= settings["threshold"]  # whether it is class 1
"""
INPUTS = {"query": "queries", "pair": "np.concatenate([queries, items, queries * items], axis=1)"}


def write_head(model: EmbeddingModel, head: ClassificationHead | None, folder: Path) -> None:
    """Write the classification head, if the model has one, into an exported model's folder.

    Args:
        head: of the configuration; describes the classes.
    """
    if model.classifier is None:
        return
    (folder / FOLDER).mkdir()
    numbers = {name: value.detach().cpu().numpy() for name, value in model.classifier.state_dict().items()}
    save_arrays(numbers, folder / FOLDER / "model.safetensors")
    classes = ["", ""] if head is None else [f"label <= {head.negative_max:g}", f"label >= {head.positive_min:g}"]
    settings: dict[str, Any] = {"input": model.shape.classifier, "threshold": model.threshold, "classes": classes}
    (folder / FOLDER / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def scoring_code(model: EmbeddingModel, folder: str) -> str:
    """Return the model card's Python snippet that scores `queries`, and `items` if the head sees them."""
    return SCORING.replace("FOLDER", folder).replace("INPUTS", INPUTS[model.shape.classifier or "query"])


def score(folder: Path, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return probabilities of class 1, float32 (rows,), by the head in an exported folder, as in the model card.

    Args:
        queries: float32 (rows, width), unit vectors.
        items: float32 (rows, width), unit vectors of the items in the same rows.
    """
    settings = json.loads((folder / FOLDER / "config.json").read_text(encoding="utf-8"))
    head = load_file(folder / FOLDER / "model.safetensors")
    pair = settings["input"] == "pair"
    inputs = np.concatenate([queries, items, queries * items], axis=1) if pair else queries
    logits = inputs @ head["weight"].T + head["bias"]
    found: np.ndarray = (1 + np.tanh((logits[:, 1] - logits[:, 0]) / 2)) / 2
    return found


# The keys of pooling modes in every version of the library; all are written, as the default is mean.
_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


def export_model(parts: ModelParts, config: Config, version: str, folder: Path) -> None:
    """Write the model to the empty `folder`; each head is a subfolder, not part of the embedding."""
    model = parts.model
    longest = config.infer.max_tokens
    model.encoder.save_pretrained(folder)
    parts.tokenizer.save(str(folder / tokens.FILE))
    write_settings(parts.tokenizer_settings, folder, longest)
    modules = [
        _entry(0, "", f"{released_code.LIBRARY}.Transformer"),
        _entry(1, "1_Pooling", f"{released_code.LIBRARY}.Pooling"),
    ]
    text_width = model.encoder.config.hidden_size
    pooling = {name: value == model.shape.pooling for name, value in _POOLING_KEYS.items()}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": text_width, **pooling})
    for number, (layer, activation) in enumerate(_dense_layers(model), start=len(modules)):
        modules.append(_entry(number, f"{number}_Dense", f"{released_code.LIBRARY}.Dense"))
        _write_dense(layer, activation, folder / f"{number}_Dense")
    if model.interaction is not None:
        modules[0]["type"] = "released_modules.FeatureTransformer"
        path = f"{len(modules)}_Interaction"
        modules.append(_entry(len(modules), path, "released_modules.FeatureInteraction"))
        _write_interaction(parts, folder, path)
    modules.append(_entry(len(modules), f"{len(modules)}_Normalize", f"{released_code.LIBRARY}.Normalize"))
    (folder / f"{len(modules) - 1}_Normalize").mkdir()
    _write_json(folder / "modules.json", modules)
    lower_case = lower_cases(parts.tokenizer)  # for classes that rebuild the tokenizer from its settings
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": lower_case})
    prompts = to_names(model.shape.prompts)
    _write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})
    write_head(model, config.heads.classification, folder)
    write_label_heads(model, folder)
    _write_json(folder / "millrace.json", {"model_version": version, "config": config.tree()})


def _entry(index: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": index, "name": str(index), "path": path, "type": kind}


def _write_interaction(parts: ModelParts, folder: Path, path: str) -> None:
    model = parts.model
    assert model.interaction is not None
    assert model.shape.interaction is not None
    _write_json(folder / path / "config.json", model.shape.interaction.model_dump())
    weights = {name: value.cpu().contiguous() for name, value in model.interaction.state_dict().items()}
    save_file(weights, folder / path / "model.safetensors")
    (folder / features.FILE).write_bytes(parts.features.to_json())
    released_code.copy_code(folder)


def _dense_layers(model: EmbeddingModel) -> Iterator[tuple[nn.Linear, Activation]]:
    """Yield the linear layers between pooling and interaction, with the functions after them."""
    for layer, shape in zip(model.dense, model.shape.dense, strict=True):
        assert isinstance(layer, nn.Linear)
        yield layer, shape.activation
    if model.projection is not None:
        yield model.projection, "identity"


def _write_dense(layer: nn.Linear, activation: Activation, folder: Path) -> None:
    settings = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": released_code.ACTIVATIONS[activation],
    }
    _write_json(folder / "config.json", settings)
    weights = {f"linear.{name}": value.cpu().contiguous() for name, value in layer.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
