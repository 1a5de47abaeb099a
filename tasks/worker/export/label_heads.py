"""The heads of labels of a released model: a folder each, which the embedding does not need.

Loading one takes safetensors and JSON alone; `label_scoring_code` is how, as the model card says.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tasks.worker.export.head import INPUTS
from tasks.worker.model.classify import head_inputs
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.label_heads import LABEL_TASKS

LOADING = """\
import json
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file

settings = json.loads(Path("FOLDER/HEAD/config.json").read_text())
head = load_file("FOLDER/HEAD/model.safetensors")
inputs = INPUTS
outputs = inputs @ head["weight"].T + head["bias"]
"""


def write_label_heads(model: EmbeddingModel, folder: Path) -> None:
    """Write each head into an exported model's folder."""
    for name, shape in model.shape.label_heads.items():
        (folder / name).mkdir()
        weights = model.label_heads[name].state_dict()
        save_file({key: value.detach().cpu().numpy() for key, value in weights.items()}, _weights(folder, name))
        settings: dict[str, Any] = {"input": shape.input, "outputs": shape.outputs, **shape.meaning}
        (folder / name / "config.json").write_text(json.dumps(settings, indent=2) + "\n")


def label_scoring_code(model: EmbeddingModel, name: str, folder: str) -> str:
    """Return the lines of Python with which an exported head says something of `queries`, with `items` if it sees them.

    They end with `says`, a value for each row.
    """
    loading = LOADING.replace("FOLDER", folder).replace("HEAD", name)
    return loading.replace("INPUTS", INPUTS[model.shape.label_heads[name].input]) + LABEL_TASKS[name].scoring


def exported_outputs(folder: Path, name: str, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the outputs of a head in an exported folder, float32 (rows, outputs).

    Args:
        queries: float32 (rows, width), unit vectors.
        items: likewise, of the items that they are judged with.
    """
    settings, head = json.loads((folder / name / "config.json").read_text()), load_file(_weights(folder, name))
    found: np.ndarray = head_inputs(settings["input"], queries, items) @ head["weight"].T + head["bias"]
    return found


def _weights(folder: Path, name: str) -> Path:
    return folder / name / "model.safetensors"
