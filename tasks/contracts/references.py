"""References to objects in the workspace (keys and checksums, never the data), and the record of a checkpoint.

That record is `state.json`. Only the worker plane reads the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from configs.schema.stages import EvaluateConfig
from tasks.contracts.kinds import lineage_of, run_of
from tasks.contracts.workspace import COMPILED, FEED, SPAN
from tasks.foundation.records import Record


class SpanRef(Record):
    """One version of one span of ingested input: `spans/<name>/v<version>/`."""

    name: str = Field(description="name of the span, for example 2026-W47")
    version: int = Field(ge=1, description="version of the span")

    @property
    def prefix(self) -> str:
        return SPAN.key(span=self.name, version=self.version)


class RowsRef(Record):
    """The validated rows of one span; a folder with a manifest."""

    span: SpanRef
    prefix: str
    rows: int
    sides: str | None = Field(
        default=None,
        description="folder with the near-duplicates that are left out of training or holdout; null: not searched",
    )
    share: float | None = Field(
        default=None, description="holdout share when the rows were split; null: the configuration's"
    )
    held: str | None = Field(
        default=None, description="folder of the held-out rows and of all pairs; null: not written yet"
    )
    row_keys: str | None = Field(  # not `keys`, by which dict() takes an object for a mapping
        default=None, description="folder of the keys of all rows, from which later runs know their pairs; null: none"
    )

    @property
    def run_key(self) -> str:
        """The run that validated the rows, and trained on them."""
        return run_of(self.prefix)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the workspace that this reference names."""
        return tuple(folder for folder in (self.prefix, self.sides, self.held, self.row_keys) if folder is not None)


def newest_rows(*groups: Sequence[RowsRef]) -> tuple[RowsRef, ...]:
    """Return each span's rows in their newest version; among equal versions, the first."""
    found: dict[str, RowsRef] = {}
    for rows in (rows for group in groups for rows in group):
        if rows.span.name not in found or rows.span.version > found[rows.span.name].span.version:
            found[rows.span.name] = rows
    return tuple(found.values())


class FeedRef(Record):
    """One version of one span of an item feed: `items/<name>/v<version>/`."""

    name: str
    version: int = Field(ge=1)

    @property
    def prefix(self) -> str:
        return FEED.key(span=self.name, version=self.version)


class CatalogueRef(Record):
    """Every live item of a lineage, by partition: `catalogue/<key>/`; `sha256` is over its manifest."""

    prefix: str
    items: int
    partitions: int
    sha256: str


class CheckpointRef(Record):
    """A complete checkpoint; `sha256` is over its manifest, so it names exact weights."""

    prefix: str
    step: int
    sha256: str

    @property
    def lineage(self) -> str:
        """The lineage, or the branch, that the checkpoint lies in."""
        return lineage_of(self.prefix)


class CompileRef(Record):
    """The compile cache that warmup made: `compile/<key>/`, with `graphs` compiled graphs in its manifest."""

    key: str
    graphs: int
    seconds: float = Field(description="seconds that compiling all graphs took")

    @property
    def prefix(self) -> str:
        return COMPILED.key(key=self.key)


class Weights(Record):
    """A model version and its checkpoint."""

    version: str = Field(description="model version, for example main-00000060-2d8a0c53")
    checkpoint: CheckpointRef


class ModelRef(Weights):
    """A released model, or one that may be.

    It embeds both sides, unless it was trained on queries alone: `items` made the item vectors that its queries find.
    """

    items: Weights | None = Field(default=None, description="model that embeds the items; null: this one")

    @property
    def of_items(self) -> Weights:
        """The model that embeds the items."""
        return self.items or Weights(version=self.version, checkpoint=self.checkpoint)


class ReleasedRef(Record):
    """The model and the vectors of one release."""

    number: int
    model_version: str
    model_prefix: str
    vectors_prefix: str
    model_sha256: str = Field(description="SHA-256 of the model's manifest")
    vectors_sha256: str = Field(description="SHA-256 of the vectors' manifest")
    items_version: str | None = Field(
        default=None, description="model version of the vectors; null: that of the model itself"
    )

    @property
    def vectors_by(self) -> str:
        """The model version of the vectors."""
        return self.items_version or self.model_version


class MinedRelease(Record):
    """The release whose vectors hard negatives are mined from, or that queries are trained to find."""

    number: int
    model: ModelRef
    vectors: str = Field(description="folder of its vectors")
    vectors_sha256: str = Field(description="SHA-256 of the vectors' manifest, as it was released")
    catalogue: CatalogueRef


QUERY_AND_ITEM = "query_and_item"  # the default of `evaluate.group`
QUERY_ALONE = "query"


class CurvePoint(Record):
    """Metrics at one global step: a training loss, or the in-loop evaluation of the holdout."""

    step: int
    metrics: dict[str, float]


class HoldoutRule(Record):
    """The rule that splits a lineage's rows into training and holdout, by two hashes: of the query, and of the group.

    One half of the share holds out queries with all their rows, in every span: the unseen queries. The other half holds
    out groups, whose queries may have other rows in training: the seen queries. With the group `query` all are unseen.

    The grouping is fixed once rows were trained on, or rows could be in both splits. The share may change: rows below
    the largest share so far are not trained on, and rows below the smallest are measured, so no row changes its split.
    """

    version: Literal[1] = Field(default=1, description="version of the hashes and of text normalisation")
    group: str = Field(description="query_and_item, query, item, or the column whose value names the group of a row")
    share: float = Field(
        description="rows whose place, from `hold_places`, is below this share of all places are not trained on"
    )
    measured: float = Field(description="rows below this share are measured")

    @classmethod
    def of(cls, settings: EvaluateConfig, refs: Iterable[RowsRef] = ()) -> HoldoutRule:
        """Return the rule of a configuration in a lineage.

        Args:
            refs: all spans of the lineage so far, with the run's own.
        """
        shares = [settings.holdout_share, *(ref.share for ref in refs if ref.share is not None)]
        return cls(group=settings.group or QUERY_AND_ITEM, share=max(shares), measured=min(shares))


class GroupRange(Record):
    """Rows whose places, from `hold_places`, as shares of all places, are from `start` to below `end`."""

    start: float
    end: float


class HeadSolved(Record):
    """A classification head that was solved on training rows after the last step, and calibrated on development rows.

    The metrics are cross-validated on rows that the encoder was trained on, so they are better than on new rows.
    """

    step: int = Field(description="global step after which it was solved")
    rows: int = Field(description="number of rows it was solved on: the newest labelled ones, with the history")
    class_rows: tuple[int, ...] = Field(description="rows of each class")
    strength: float = Field(description="chosen inverse strength of the L2 penalty")
    threshold: float = Field(description="lowest probability of class 1 at which class 1 is predicted")
    calibration_rows: int = Field(
        description="development rows that fixed slope and shift: neither encoder nor head was trained on them"
    )
    metrics: dict[str, float]


class LabelHeadSolved(Record):
    """A head that predicts one label of each row, solved on training rows and calibrated on development rows.

    The metrics are cross-validated on rows that the encoder was trained on, as in `HeadSolved`.
    """

    step: int = Field(description="global step after which it was solved")
    rows: int = Field(description="number of rows it was solved on: the newest labelled ones, with the history")
    strength: float = Field(description="chosen inverse strength of the L2 penalty")
    calibration_rows: int = Field(description="development rows that calibrated it, as in `HeadSolved`")
    metrics: dict[str, float]


class CheckpointState(Record):
    """`state.json` of a checkpoint: the lineage's training progress. The control plane reads this, never the weights.

    `seed` is the only random state: every step's generator is seeded from (seed, global step). The position in the data
    is the step number, because the batch plan is a pure function.
    """

    version: Literal[1] = 1
    lineage: str
    run_key: str
    step: int = Field(ge=0, description="global step: optimiser steps along the lineage")
    first_step: int = Field(ge=0, description="the global step at which this run began")
    complete: bool = Field(description="the run's last batch is done, so its spans count as consumed")
    consumed: tuple[RowsRef, ...] = Field(
        description="all spans in the weights, oldest first; this run's spans only once it is complete"
    )
    parent: CheckpointRef | None
    seed: int
    holdout: HoldoutRule | None = Field(default=None, description="null: no row was trained on yet")
    spared: dict[str, GroupRange] = Field(
        default={}, description="development groups, which training left out, by span; a span without any is absent"
    )
    head: HeadSolved | None = Field(default=None, description="null: no head, or only gradient steps trained it")
    label_heads: dict[str, LabelHeadSolved] = Field(default={}, description="solved label heads, by name")
    losses: tuple[CurvePoint, ...] = Field(
        description="training losses of this run so far, every train.log_every_steps"
    )
    curve: tuple[CurvePoint, ...] = Field(
        description="in-loop evaluations of this run so far, every train.evaluate_every_steps"
    )
    development: tuple[CurvePoint, ...] = Field(
        default=(), description="metrics of this run so far on the development rows of train.keep_best"
    )
    kept_step: int | None = Field(
        default=None, description="step of the weights, chosen by train.keep_best; null: the last step"
    )
