"""The record of a checkpoint: `state.json`. Only the worker plane reads the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from configs.schema.stages import EvaluateConfig
from tasks.contracts.references import CheckpointRef, RowsRef
from tasks.foundation.records import Record

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
