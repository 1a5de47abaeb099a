"""The classification head and label heads of a released model, in folders that the embedding does not need.

Loading a head takes only safetensors and JSON; `SCORING` is the code, shown in the model card and checked by release.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from configs.schema.training import ClassificationHead
from tasks.worker.model.classify import head_inputs
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.label_heads import LABEL_TASKS

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
        save_file({key: value.detach().cpu().numpy() for key, value in weights.items()}, _weights(folder, name))
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
    save_file(numbers, folder / FOLDER / "model.safetensors")
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
