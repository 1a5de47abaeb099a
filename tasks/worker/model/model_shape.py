"""The architecture of a model, made from a configuration."""

from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from configs.schema.label_heads import LabelHead
from tasks.data.encoders import TextShape
from tasks.foundation.records import Record
from tasks.worker.model.features import FeatureTable


class InteractionShape(Record):
    """The arguments of `Interaction`."""

    text_width: int
    numeric: int
    categories: list[int]
    kind: Literal["explicit", "implicit", "both"]
    cross_layers: int
    deep_widths: list[int]
    categorical_width: int
    output_width: int


class LabelHeadShape(Record):
    """A label head: its input, and the meaning of its outputs."""

    input: Literal["query", "pair"]
    outputs: int
    meaning: dict[str, float | list[str]]  # by setting name of the head, e.g. `classes`


class ModelShape(TextShape):
    """The architecture of a model around its encoder. Saved in every checkpoint."""

    width: int
    interaction: InteractionShape | None
    classifier: Literal["query", "pair"] | None
    learnt_scale: float | None = None  # initial value; null: fixed scale
    label_heads: dict[str, LabelHeadShape] = Field(default={})


def shape_of(config: Config, encoder_width: int, features: FeatureTable, text: TextShape) -> ModelShape:
    """Return the shape of a configured model on an encoder of `encoder_width`, with pooling and prompts of `text`."""
    model, head = config.model, config.heads.classification
    text_width = text.text_width(encoder_width)
    width = model.embedding_width or text_width
    interaction = None
    if model.interaction.kind != "none":
        interaction = InteractionShape(
            text_width=text_width,
            numeric=len(features.numeric),
            categories=features.categories,
            kind=model.interaction.kind,
            cross_layers=model.interaction.cross_layers,
            deep_widths=list(model.interaction.deep_widths),
            categorical_width=model.interaction.categorical_width,
            output_width=width,
        )
    return ModelShape(
        pooling=text.pooling,
        dense=text.dense,
        prompts=text.prompts,
        width=width,
        interaction=interaction,
        classifier=head.input if head else None,
        learnt_scale=config.heads.learnt_scale,
        label_heads={name: _label_head(each) for name, each in config.heads.of_labels.items()},
    )


def _label_head(head: LabelHead) -> LabelHeadShape:
    return LabelHeadShape(input=head.input, outputs=head.outputs, meaning=head.meaning)


def input_width(kind: Literal["query", "pair"], width: int) -> int:
    """Return the input width of a head on vectors of `width`: the query, or query, item and their product."""
    return width if kind == "query" else 3 * width
