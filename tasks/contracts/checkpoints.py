"""What a checkpoint says about itself: `state.json`. Only the worker plane reads the weights."""

from typing import Literal

from pydantic import Field

from tasks.contracts.references import CheckpointRef, RowsRef
from tasks.foundation.records import Record


class CurvePoint(Record):
    """Numbers at one global step: a loss as training saw it, or the holdout as the in-loop evaluation did."""

    step: int
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
    losses: tuple[CurvePoint, ...] = Field(description="of this run so far, every train.log_every_steps")
    curve: tuple[CurvePoint, ...] = Field(description="of this run so far, every train.evaluate_every_steps")
