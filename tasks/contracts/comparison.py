"""Runs next to each other: their settings, and the answers of their models to the same rows."""

from typing import Any, Literal

from pydantic import Field

from tasks.contracts.references import CurvePoint
from tasks.contracts.runs import RunState
from tasks.foundation.records import Record

RATE = "learning_rate"  # metric of `ComparedRun.rates`


class CostPoint(Record):
    """One evaluation within a training: the metric, and the time and money until then."""

    step: int
    seconds: float = Field(description="seconds by the clock since health began, evenly spread over the steps")
    dollars: float | None = Field(description="dollars until this step; null: the price is not known")
    value: float


class ComparedRun(Record):
    """One run of a comparison."""

    label: str = Field(description="letter in tables and figures")
    name: str = Field(description="name, as it was given")
    run_key: str = Field(description="key of the run")
    span: str = Field(description="name of its span")
    lineage: str = Field(description="lineage or branch that it trained in")
    state: RunState = Field(description="state of the run")
    release: int | None = Field(description="number of its release; null: none")
    model_version: str | None = Field(description="null: not trained yet")
    metrics: dict[str, float] = Field(description="metrics on its own holdout; empty: not evaluated yet")
    holdout_rows: int | None = Field(description="rows of that holdout; null: not evaluated yet")
    first_step: int | None = Field(description="global step before its training; null: not trained yet")
    last_step: int | None = Field(description="global step after its training; null: not trained yet")
    learning_rate: float | None = Field(description="rate of the schedule at the last step; null: not known")
    losses: tuple[CurvePoint, ...] = Field(description="losses that training logged, by global step")
    rates: tuple[CurvePoint, ...] = Field(description="learning rate at the same steps, by global step")
    curve: tuple[CurvePoint, ...] = Field(description="holdout metrics within the training, by global step")
    costs: tuple[CostPoint, ...] = Field(
        default=(), description="the metric of `target` by seconds and dollars of health, warmup and train"
    )
    target: CostPoint | None = Field(
        default=None, description="first evaluation at the target; null: not reached, or there is no target"
    )


class ComparedSetting(Record):
    """A setting that differs among the runs."""

    key: str = Field(description="its name, such as train.learning_rate")
    values: tuple[Any, ...] = Field(description="one for each run, in their order")


AnyQueries = Literal["unseen", "seen", "all"]


class ComparedMetric(Record):
    """One metric of two models on the same rows."""

    metric: str = Field(description="name, such as recall@10")
    queries: AnyQueries = Field(
        description="rows of queries unseen by both models, the others, or all; ranking metrics have all three"
    )
    rows: int = Field(description="holdout rows that it is a mean of")
    a: float = Field(description="value of model a")
    b: float = Field(description="value of model b")
    difference: float = Field(description="b - a")
    low: float = Field(description="lower bound of the difference")
    high: float = Field(description="upper bound; both together with 95 % confidence")
    answer: Literal["better", "worse", "undecided"] = Field(description="b compared with a")


class ComparedSlice(Record):
    """The metric on the rows with one value of a column."""

    column: str = Field(description="one of evaluate.slices")
    value: str = Field(description="value of the column")
    numbers: ComparedMetric = Field(description="the metric on these rows")


class ComparedQuery(Record):
    """One holdout row, and the rank of its item by each model, from 1."""

    span: str = Field(description="span of the row")
    row_id: str = Field(description="id of the row")
    query: str = Field(description="empty: its text is not kept")
    item_id: str = Field(description="id of its item")
    item: str = Field(description="text of the item")
    rank_a: int = Field(description="rank by model a")
    rank_b: int = Field(description="rank by model b")


class ComparedPair(Record):
    """Two runs on the same rows. `a` and `b` are labels."""

    a: str = Field(description="label of the first run")
    b: str = Field(description="label of the other run")
    measured_in: str | None = Field(
        description="key of the run whose evaluation measured both models; null: each in its own"
    )
    rows: int = Field(description="holdout rows that both are compared on")
    rows_a: int = Field(description="holdout rows of run a")
    rows_b: int = Field(description="holdout rows of run b")
    items: str = Field(description="items that were ranked, for people")
    notes: tuple[str, ...] = Field(description="limits of the comparison, in sentences")
    metrics: tuple[ComparedMetric, ...] = Field(description="each metric that both have")
    slices: tuple[ComparedSlice, ...] = Field(description="by the first ranking metric among the gates of `b`")
    losses: tuple[ComparedQuery, ...] = Field(description="queries whose item fell most, the largest fall first")
    wins: tuple[ComparedQuery, ...] = Field(description="queries whose item rose most, the largest rise first")


class Comparison(Record):
    """`millrace compare`: the first run, and each other one compared with it."""

    metric: str | None = Field(
        default=None,
        description="metric of the target: the first run's at its last evaluation; null: the runs trained other spans, "
        "from other checkpoints, or were not measured within the training",
    )

    runs: tuple[ComparedRun, ...] = Field(description="in the order of the command")
    settings: tuple[ComparedSetting, ...] = Field(description="settings that differ")
    pairs: tuple[ComparedPair, ...] = Field(description="the first run with each other one")
