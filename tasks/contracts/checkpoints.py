"""What a checkpoint says about itself: `state.json`. Only the worker plane reads the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from configs.schema.stages import EvaluateConfig
from tasks.contracts.references import CheckpointRef, RowsRef
from tasks.foundation.records import Record

QUERY_AND_ITEM = "query_and_item"  # the group of a row in a lineage whose configuration names none


class CurvePoint(Record):
    """Numbers at one global step: a loss as training saw it, or the holdout as the in-loop evaluation did."""

    step: int
    metrics: dict[str, float]


class HoldoutRule(Record):
    """Which rows of a lineage are held out, by a hash of the name of their group.

    The group never changes once rows were trained on, or some would be on both sides. The share may: rows below the
    largest share so far are not trained on, and those below the smallest are measured, so that no row ever changes
    sides.
    """

    version: Literal[1] = Field(default=1, description="of the hash and of how texts are normalised")
    group: str = Field(description="query_and_item, query, item, or the column whose value names the group of a row")
    share: float = Field(description="of all hashes: groups below are not trained on")
    measured: float | None = Field(default=None, description="groups below this share are measured; null: `share`")

    @classmethod
    def of(cls, settings: EvaluateConfig, refs: Iterable[RowsRef] = ()) -> HoldoutRule:
        """Return the rule of a configuration in a lineage; one that names no group has that of a new lineage.

        Args:
            refs: all spans of the lineage so far, those of the run among them.
        """
        shares = [settings.holdout_share, *(ref.share for ref in refs if ref.share is not None)]
        return cls(group=settings.group or QUERY_AND_ITEM, share=max(shares), measured=min(shares))

    @property
    def measured_share(self) -> float:
        """The share of all hashes below which groups are measured."""
        return self.share if self.measured is None else self.measured


class HeadSolved(Record):
    """A classification head that was solved on training rows after the last step, and what it named rows by since.

    The metrics are cross-validated: of the same rows, by fits that had not seen them.
    """

    step: int = Field(description="global step after which it was solved")
    rows: int = Field(description="the newest training rows with a class, of the history too")
    class_rows: tuple[int, ...] = Field(description="rows of each class")
    strength: float = Field(description="inverse strength of the L2 penalty that was chosen")
    threshold: float = Field(description="the probability of class 1 from which on that class is named")
    metrics: dict[str, float]


class LabelHeadSolved(Record):
    """A head that learns one value of each row, solved on training rows after the last step.

    The metrics are cross-validated, as those of `HeadSolved`.
    """

    step: int = Field(description="global step after which it was solved")
    rows: int = Field(description="the newest training rows with a value, of the history too")
    strength: float = Field(description="inverse strength of the L2 penalty that was chosen")
    metrics: dict[str, float]


class CheckpointState(Record):
    """`state.json` of a checkpoint: how far the lineage is trained. The control plane reads this, never the weights.

    `seed` is the only random state: every step's generator is seeded from (seed, global step). The position in the data
    is the step number, because the batch plan is a pure function.
    """

    version: Literal[1] = 1
    lineage: str
    run_key: str
    step: int = Field(ge=0, description="global optimiser steps along the lineage")
    first_step: int = Field(ge=0, description="the global step at which this run began")
    complete: bool = Field(description="the run's last batch is done, so its spans count as consumed")
    consumed: tuple[RowsRef, ...] = Field(description="all spans in the weights, oldest first; of this run if complete")
    parent: CheckpointRef | None
    seed: int
    holdout: HoldoutRule | None = Field(default=None, description="null: no row was trained on yet")
    head: HeadSolved | None = Field(default=None, description="null: the steps alone made the head, or there is none")
    label_heads: dict[str, LabelHeadSolved] = Field(default={}, description="heads of labels that were solved")
    losses: tuple[CurvePoint, ...] = Field(description="of this run so far, every train.log_every_steps")
    curve: tuple[CurvePoint, ...] = Field(description="of this run so far, every train.evaluate_every_steps")
    development: tuple[CurvePoint, ...] = Field(
        default=(), description="of this run so far, on the development rows of train.keep_best"
    )
    kept_step: int | None = Field(
        default=None, description="the weights are of this step, which train.keep_best chose; null: of `step`"
    )
