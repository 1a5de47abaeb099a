"""The folder of an export, `exports/onnx/` in the folder of a model: names of its files, and `export.json`.

Alone, since it is written without the runtime that opens it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.schema.model import Prompts
from configs.schema.stages import ExportKind
from tasks.foundation.records import Record
from tasks.worker.model.features import FeatureTable

FOLDER, ABOUT = "exports", "export.json"
IDS, MASK, NUMERIC, CATEGORICAL, VECTORS = "input_ids", "attention_mask", "numeric", "categorical", "vectors"


class ExportAbout(Record):
    """`export.json`: the model of a graph, and the treatment of texts and features before it."""

    version: Literal[1] = 1
    kind: ExportKind
    model_version: str
    width: int = Field(description="numbers of a vector")
    widths: tuple[int, ...] = Field(description="trained Matryoshka widths below it")
    max_tokens: int = Field(description="tokens after which a text is cut")
    pad: int = Field(description="token id of padding")
    prompts: Prompts
    features: FeatureTable = Field(description="features, and the column that selects a text's prompt")
