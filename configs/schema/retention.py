"""The configuration of training against forgetting: every key, its meaning, unit and bounds."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from configs.schema.compute import Positive
from configs.schema.metrics import Family, MetricName, names_of
from tasks.foundation.records import Record

MEASURED_IN_THE_LOOP = tuple(
    name for family in (Family.ranking, Family.classification, Family.label) for name in names_of(family)
)

Inside = Annotated[float, Field(gt=0.0, lt=1.0)]


class AveragingConfig(Record):
    """The averaged weights that are evaluated and released: an EMA, or a mean with the parent."""

    ema_half_life_steps: float | None = Field(
        default=None,
        gt=0,
        description="half-life of the moving average of the weights (EMA), in steps along the lineage; training "
        "continues from the raw weights",
    )
    merge_with_parent: Inside | None = Field(
        default=None,
        description="share of the parent's weights in the mean that is released at the end of a run; the next run "
        "continues from the mean",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.ema_half_life_steps is None) is (self.merge_with_parent is None):
            raise ValueError(
                "train.averaging takes one of ema_half_life_steps and merge_with_parent; null averages nothing"
            )
        return self


class KeepBestConfig(Record):
    """Early stopping: a run keeps the weights of its best step on development rows, split off the training rows."""

    metric: MetricName = Field(
        description="metric that chooses the best step, measured every evaluate_every_steps; of ranking, classes "
        "or labels"
    )
    rows: Positive = Field(
        description="development rows, split off the run's rows by a stable hash and not trained on; at most a "
        "tenth of them"
    )
    patience: Positive | None = Field(
        description="number of evaluations without a gain after which the run ends; null: it never ends early"
    )

    @field_validator("metric")
    @classmethod
    def _measured_in_the_loop(cls, metric: str) -> str:
        if metric not in MEASURED_IN_THE_LOOP:
            raise ValueError(f"train.keep_best: {metric} is not measured in training; use one of {_NAMES}")
        return metric


class DecayConfig(Record):
    """Linear learning-rate decay at the end of a run; the next run resumes the schedule."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        description="share of the run's steps in which the rate falls linearly, at its end"
    )
    floor: Inside = Field(description="rate of the last step, as a share of the schedule's")


_NAMES = ", ".join(MEASURED_IN_THE_LOOP)
