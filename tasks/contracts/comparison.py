"""Runs next to each other: their settings, and the answers of their models to the same rows."""

from typing import Any, Literal

from pydantic import Field

from tasks.contracts.checkpoints import CurvePoint
from tasks.contracts.runs import RunState
from tasks.foundation.records import Record

RATE = "learning_rate"  # metric of `ComparedRun.rates`


class ComparedRun(Record):
    """One run of a comparison."""

    label: str = Field(description="letter in tables and figures")
    name: str = Field(description="name, as it was given")
    run_key: str
    span: str
    lineage: str
    state: RunState
    release: int | None = Field(description="number of its release; null: none")
    model_version: str | None = Field(description="null: not trained yet")
    metrics: dict[str, float] = Field(description="metrics on its own holdout; empty: not evaluated yet")
    holdout_rows: int | None
    first_step: int | None = Field(description="global step before its training; null: not trained yet")
    last_step: int | None
    learning_rate: float | None = Field(description="rate of the schedule at the last step; null: not known")
    losses: tuple[CurvePoint, ...] = Field(description="losses that training logged, by global step")
    rates: tuple[CurvePoint, ...] = Field(description="learning rate at the same steps, by global step")
    curve: tuple[CurvePoint, ...] = Field(description="holdout metrics within the training, by global step")


class ComparedSetting(Record):
    """A setting that differs among the runs."""

    key: str
    values: tuple[Any, ...] = Field(description="one for each run, in their order")


class ComparedMetric(Record):
    """One metric of two models on the same rows."""

    metric: str
    rows: int
    a: float
    b: float
    difference: float = Field(description="b - a")
    low: float = Field(description="lower bound of the difference")
    high: float = Field(description="upper bound; both together with 95 % confidence")
    answer: Literal["better", "worse", "undecided"] = Field(description="b compared with a")


class ComparedSlice(Record):
    column: str
    value: str
    numbers: ComparedMetric


class ComparedQuery(Record):
    """One holdout row, and the rank of its item by each model, from 1."""

    span: str
    row_id: str
    query: str = Field(description="empty: its text is not kept")
    item_id: str
    item: str = Field(description="text of the item")
    rank_a: int
    rank_b: int


class ComparedPair(Record):
    """Two runs on the same rows. `a` and `b` are labels."""

    a: str
    b: str
    measured_in: str | None = Field(
        description="key of the run whose evaluation measured both models; null: each in its own"
    )
    rows: int = Field(description="holdout rows that both are compared on")
    rows_a: int
    rows_b: int
    items: str = Field(description="items that were ranked, for people")
    notes: tuple[str, ...] = Field(description="limits of the comparison, in sentences")
    metrics: tuple[ComparedMetric, ...]
    slices: tuple[ComparedSlice, ...] = Field(description="by the first ranking metric among the gates of `b`")
    losses: tuple[ComparedQuery, ...] = Field(description="queries whose item fell most, the largest fall first")
    wins: tuple[ComparedQuery, ...] = Field(description="queries whose item rose most, the largest rise first")


class Comparison(Record):
    """`millrace compare`: the first run, and each other one compared with it."""

    runs: tuple[ComparedRun, ...]
    settings: tuple[ComparedSetting, ...]
    pairs: tuple[ComparedPair, ...]
