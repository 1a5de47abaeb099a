"""Heads that learn one value of each row from a column: one of several classes, or a number such as a relevance."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tasks.foundation.records import Record

LARGEST_NUMBER = 1e6  # bounds of a scale: its arithmetic is float32


class LabelHead(Record):
    """Settings that these heads share."""

    weight: float = Field(ge=0, description="weight of its loss in the sum of all heads")
    input: Literal["query", "pair"] = Field(description="`query` alone, or the `pair` of query and item")
    column: str = Field(
        default="label", min_length=1, description="column that it learns from; a row without a value is not used"
    )
    learning_rate_factor: float = Field(
        default=1.0,
        gt=0,
        description="factor of train.learning_rate for the head alone; an encoder's rate is too low for it",
    )
    refit_rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="number of newest training rows with a value on which the head is solved after the last step, "
        "calibrated on rows left out of training (500 a run, at most 5 %); null: it stays as trained",
    )

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each row."""
        return 1

    @property
    def of_names(self) -> bool:
        """True: the column holds names; else numbers."""
        return False

    @property
    @abstractmethod
    def meaning(self) -> dict[str, float | list[str]]:
        """The settings that define the outputs; they are fixed for a lineage."""

    @property
    @abstractmethod
    def why_not(self) -> str:
        """The fault of a value that the head can't learn, as an end of a sentence after the column's name."""

    @abstractmethod
    def learnt_of(self, values: Sequence[Any]) -> list[float]:
        """Return the target for each value in its column; NaN if it has none."""


class MulticlassHead(LabelHead):
    """One of several classes, by the values of the column; a number such as 5.0 is named 5, and true is named true."""

    classes: tuple[str, ...] = Field(
        min_length=2,
        description="values of the column, as in [1, 2, 3]; a row with another value is bad",
        json_schema_extra={"items": {"type": ["string", "number", "boolean"]}},
    )
    loss: Literal["plain", "balanced"] = Field(
        default="plain", description="`plain` cross entropy; `balanced`: rows weigh by the inverse share of their class"
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        """Convert numbers to names, since YAML reads `[1, 2, 3]` as numbers."""
        if isinstance(values, dict) and isinstance(classes := values.get("classes"), Sequence):
            if isinstance(classes, str):
                raise ValueError(f"heads.multiclass.classes must be a list, as in [{classes}, other]")
            return values | {"classes": tuple(class_name(each) for each in classes)}
        return values

    @model_validator(mode="after")
    def _classes_differ(self) -> Self:
        if again := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise ValueError(f"heads.multiclass.classes names {', '.join(again)} twice")
        return self

    @property
    def outputs(self) -> int:
        return len(self.classes)

    @property
    def of_names(self) -> bool:
        return True

    @property
    def meaning(self) -> dict[str, float | list[str]]:
        return {"classes": list(self.classes)}

    @property
    def why_not(self) -> str:
        return "is none of heads.multiclass.classes"

    def learnt_of(self, values: Sequence[Any]) -> list[float]:
        """Return the number of each value's class, from 0."""
        numbers = {name: float(number) for number, name in enumerate(self.classes)}
        return [numbers.get(class_name(value), math.nan) for value in values]


class RegressionHead(LabelHead):
    """A number between two bounds, such as a relevance from 0 to 3, learnt by its squared error."""

    low: float = Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, description="least value; a row with a lower one is bad")
    high: float = Field(
        ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, description="greatest value; a row with a higher one is bad"
    )

    @model_validator(mode="after")
    def _bounds_apart(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"heads.regression.low {self.low:g} must be below high {self.high:g}")
        return self

    @property
    def meaning(self) -> dict[str, float | list[str]]:
        return {"low": self.low, "high": self.high}

    @property
    def why_not(self) -> str:
        return f"is not from {self.low:.10g} to {self.high:.10g} (heads.regression)"

    def learnt_of(self, values: Sequence[Any]) -> list[float]:
        """Return each value as a number; NaN if it is out of bounds."""
        return [number if self.low <= number <= self.high else math.nan for number in map(number_of, values)]


def class_name(value: Any) -> Any:
    """Return the class name of a row's value: `5` for 5.0, `true` for True; anything else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int | float) else value


def number_of(value: Any) -> float:
    """Return a value as a number; NaN for a missing value or a word."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
