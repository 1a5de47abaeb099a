"""The configuration of validate: limits of rows and spans, drift, and the expectations that a file may name.

A span is judged in pieces, so an expectation about single rows, about the columns, or about a number that can be added
up piece by piece can be judged; one that needs all rows at once is refused with the reason.
"""

import difflib
import enum
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from configs.schema.compute import Positive
from configs.schema.gates import Severity
from configs.schema.model import class_name
from configs.schema.stages import ONE_WORKER, Bounds, Share, WorkersConfig
from tasks.foundation.records import Record, beside


class Scope(enum.StrEnum):
    """The part of a table that an expectation judges."""

    rows = "rows"
    columns = "columns"
    number = "number"


SCOPES: dict[str, Scope] = {
    "expect_column_values_to_be_between": Scope.rows,
    "expect_column_values_to_be_in_set": Scope.rows,
    "expect_column_values_to_not_be_in_set": Scope.rows,
    "expect_column_values_to_be_null": Scope.rows,
    "expect_column_values_to_not_be_null": Scope.rows,
    "expect_column_value_lengths_to_be_between": Scope.rows,
    "expect_column_value_lengths_to_equal": Scope.rows,
    "expect_column_values_to_match_regex": Scope.rows,
    "expect_column_values_to_not_match_regex": Scope.rows,
    "expect_column_values_to_match_regex_list": Scope.rows,
    "expect_column_values_to_not_match_regex_list": Scope.rows,
    "expect_column_values_to_match_strftime_format": Scope.rows,
    "expect_column_values_to_be_dateutil_parseable": Scope.rows,
    "expect_column_values_to_be_json_parseable": Scope.rows,
    "expect_column_values_to_match_json_schema": Scope.rows,
    "expect_column_pair_values_to_be_equal": Scope.rows,
    "expect_column_pair_values_a_to_be_greater_than_b": Scope.rows,
    "expect_column_pair_values_to_be_in_set": Scope.rows,
    "expect_multicolumn_sum_to_equal": Scope.rows,
    "expect_multicolumn_values_to_be_equal": Scope.rows,
    "expect_select_column_values_to_be_unique_within_record": Scope.rows,
    "expect_column_to_exist": Scope.columns,
    "expect_table_column_count_to_equal": Scope.columns,
    "expect_table_column_count_to_be_between": Scope.columns,
    "expect_table_columns_to_match_set": Scope.columns,
    "expect_table_columns_to_match_ordered_list": Scope.columns,
    "expect_table_row_count_to_equal": Scope.number,
    "expect_table_row_count_to_be_between": Scope.number,
    "expect_column_mean_to_be_between": Scope.number,
    "expect_column_min_to_be_between": Scope.number,
    "expect_column_max_to_be_between": Scope.number,
    "expect_column_sum_to_be_between": Scope.number,
    "expect_column_stdev_to_be_between": Scope.number,
    "expect_column_proportion_of_non_null_values_to_be_between": Scope.number,
}

_ALL_ROWS = "needs all rows at once, and a span is judged in pieces"
_DATABASE = "is a query on a database, and spans are files"
REFUSED: dict[str, str] = {
    "expect_column_values_to_be_unique": f"{_ALL_ROWS}; row_id is checked for repetition without being asked",
    "expect_compound_columns_to_be_unique": _ALL_ROWS,
    "expect_multicolumn_values_to_be_unique": "has a new name: expect_select_column_values_to_be_unique_within_record",
    "expect_column_values_to_be_increasing": _ALL_ROWS,
    "expect_column_values_to_be_decreasing": _ALL_ROWS,
    "expect_column_values_to_not_be_outliers": _ALL_ROWS,
    "expect_column_value_z_scores_to_be_less_than": f"{_ALL_ROWS}; the drift of the column says more",
    "expect_column_distinct_values_to_be_in_set": f"{_ALL_ROWS}; use expect_column_values_to_be_in_set",
    "expect_column_distinct_values_to_contain_set": _ALL_ROWS,
    "expect_column_distinct_values_to_equal_set": _ALL_ROWS,
    "expect_column_most_common_value_to_be_in_set": f"{_ALL_ROWS}; the drift of the column says more",
    "expect_column_kl_divergence_to_be_less_than": f"{_ALL_ROWS}; the drift of the column says the same",
    "expect_column_median_to_be_between": f"{_ALL_ROWS}; use expect_column_mean_to_be_between, or the column's drift",
    "expect_column_quantile_values_to_be_between": f"{_ALL_ROWS}; the drift of the column says the same",
    "expect_column_proportion_of_unique_values_to_be_between": _ALL_ROWS,
    "expect_column_unique_value_count_to_be_between": _ALL_ROWS,
    "expect_column_type_to_be": "is about pandas' types; validate checks the type of each column in use by itself",
    "expect_column_values_to_be_of_type": "is about pandas' types; validate checks the type of each column in use",
    "expect_column_values_to_be_in_type_list": "is about pandas' types; validate checks those of columns in use",
    "expect_column_values_to_match_like_pattern": f"{_DATABASE}; use expect_column_values_to_match_regex",
    "expect_column_values_to_match_like_pattern_list": f"{_DATABASE}; use expect_column_values_to_match_regex_list",
    "expect_column_values_to_not_match_like_pattern": f"{_DATABASE}; use expect_column_values_to_not_match_regex",
    "expect_column_values_to_not_match_like_pattern_list": f"{_DATABASE}; use a list of regular expressions",
    "expect_query_results_to_match_comparison": _DATABASE,
    "expect_table_row_count_to_equal_other_table": _DATABASE,
}


def check_name(name: str) -> None:
    """Raise ValueError for an expectation that is unknown or can't be judged in pieces; it names the right ones."""
    if name in REFUSED:
        raise ValueError(f"{name} {REFUSED[name]}")
    if name not in SCOPES:
        near = difflib.get_close_matches(name, SCOPES, n=3, cutoff=0.4)
        raise ValueError(f"unknown expectation {name!r}; the nearest are {', '.join(near or list(SCOPES)[:3])}")


def check_bounds(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for bounds that a number can't be compared with; Millrace adds up and compares it by itself."""
    allowed = ("value",) if name.endswith("_to_equal") else ("min_value", "max_value")
    if unknown := [argument for argument in arguments if argument not in allowed]:
        raise ValueError(f"{name} has no argument {unknown[0]!r}; it has {', '.join(allowed)}")
    if not arguments:
        raise ValueError(f"{name} needs {' or '.join(allowed)}")
    for argument, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: {argument} must be a number, got {value!r}")
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if low is not None and high is not None and low > high:
        raise ValueError(f"{name}: min_value {low} is above max_value {high}")


class ExpectationConfig(Record):
    """One expectation of great-expectations on the rows of a run, by its standard name."""

    expectation: str = Field(description="name in great-expectations, as in `expect_column_values_to_be_in_set`")
    column: str | None = Field(default=None, description="column that it judges; null: several, or the table")
    arguments: dict[str, Any] = Field(
        default={}, description="arguments by the names of great-expectations, as in {value_set: [de, fr]}"
    )
    severity: Severity = Field(
        default="warning", description="`critical`: a failure stops the run; `warning`: it is reported"
    )
    mostly: Share = Field(default=1.0, description="least share of rows that must pass, for expectations on rows")
    quarantine: bool = Field(default=False, description="quarantine of rows that don't pass")

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        check_name(self.expectation)
        if self.scope is Scope.number:
            check_bounds(self.expectation, self.arguments)
        if (self.quarantine or self.mostly < 1) and self.scope is not Scope.rows:
            raise ValueError(f"{self.expectation} judges no single rows, so it has no mostly and no quarantine")
        return self

    @property
    def scope(self) -> Scope:
        return SCOPES[self.expectation]

    @property
    def kind(self) -> str:
        """Its class in great-expectations, as in ExpectColumnValuesToBeInSet."""
        return "".join(part.capitalize() for part in self.expectation.split("_"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expectation judges; an expectation on the table's columns may name missing ones."""
        pair = [self.arguments[name] for name in ("column_A", "column_B") if name in self.arguments]
        listed = self.arguments.get("column_list", ()) if self.scope is Scope.rows else ()
        return tuple(dict.fromkeys([*([self.column] if self.column else ()), *pair, *listed]))


class ColumnDriftConfig(Record):
    """Exceptions for one column; null: as for all."""

    limit: float | None = Field(default=None, gt=0, description="limit of this column; null: as for all")
    severity: Severity | None = Field(default=None, description="severity of this column; null: as for all")


class DriftConfig(Record):
    """Limits of a column's drift from earlier spans, as a population stability index."""

    limit: float = Field(
        default=0.25,
        gt=0,
        description="greatest population stability index of a column against the spans before",
    )
    severity: Severity = Field(
        default="warning", description="`critical`: drift above the limit stops the run; `warning`: it is reported"
    )
    columns: dict[str, ColumnDriftConfig] = Field(
        default={},
        description="other limits of single columns, or of `query length`, `item length`, `query language`, `item "
        "language`",
    )

    def limit_of(self, column: str) -> float:
        own = self.columns.get(column)
        return own.limit if own and own.limit is not None else self.limit

    def severity_of(self, column: str) -> Severity:
        own = self.columns.get(column)
        return own.severity if own and own.severity is not None else self.severity


class ItemsConfig(Record):
    """Limits of how a span's items differ from the catalogue before it."""

    min_items: Positive = Field(default=100, description="least number of items; with fewer, shares are not judged")
    changed: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.3), description="share of the span's known items that have another text"
    )
    values: Bounds = Field(
        default=Bounds(warn=0.5, stop=None),
        description="share of the span's known items that have another value of a feature",
    )
    new: Bounds = Field(
        default=Bounds(warn=0.8, stop=None), description="share of the span's items that the catalogue does not know"
    )
    doubled: Bounds = Field(
        default=Bounds(warn=0.02, stop=0.5),
        description="share of the span's items that are new and have a known item's id in another form, or its text",
    )
    alike: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.5),
        description="share of the new items whose text another new item has: its rise over the known items",
    )
    words: Bounds = Field(
        default=Bounds(warn=0.4, stop=0.7),
        description=(
            "lost share, on rows about new items, of the words that queries share with their items beyond chance"
        ),
    )
    unit: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.5),
        description="share of the span's known items whose number is the same power of ten times the one before",
    )
    unrelated: Bounds = Field(
        default=Bounds(warn=0.3, stop=0.6),
        description=(
            "lost relation of the known items' values to their earlier ones: of numbers by rank correlation, of "
            "categories by the share of changed ones"
        ),
    )


class SignsConfig(Record):
    """Signs of a wrong export; each limits the rise of a share of rows over earlier spans."""

    query_is_item: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.5), description="rows whose query is the item's text: the rise of their share"
    )
    one_query: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.5), description="rows with the commonest query: the rise of their share"
    )
    one_item: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.6), description="rows with the commonest item text: the rise of their share"
    )
    query_of_item: Bounds = Field(
        default=Bounds(warn=0.3, stop=0.5),
        description=(
            "rows whose query begins or ends with the first or last word of the item's text, or names its id: the "
            "rise of their share"
        ),
    )
    other_text: Bounds = Field(
        default=Bounds(warn=0.1, stop=0.5),
        description="rows whose item has more than one text in the span: the rise of their share",
    )
    garbled: Bounds = Field(
        default=Bounds(warn=0.02, stop=0.1),
        description="rows with a text in a wrong character encoding: the rise of their share",
    )
    markup: Bounds = Field(
        default=Bounds(warn=0.02, stop=0.3), description="rows with HTML in a text: the rise of their share"
    )
    one_time: Bounds = Field(
        default=Bounds(warn=0.1, stop=None), description="rows with the commonest time: the rise of their share"
    )
    repeated: Bounds = Field(
        default=Bounds(warn=0.05, stop=0.4),
        description="rows equal to another one but for the id: the rise of their share",
    )
    misplaced: Bounds = Field(
        default=Bounds(warn=0.75, stop=0.85),
        description=(
            "share of the words common to queries and items, beyond chance, that belong to other items than their "
            "rows'; only a first span is stopped"
        ),
    )


class BeforeConfig(Record):
    """Limits of a window's missing rows, and of its repeated rows of the span before."""

    missing: Bounds = Field(
        default=Bounds(warn=0.6, stop=None),
        description="missing rows of a span, as a share of the median number of earlier spans",
    )
    again: Bounds = Field(
        default=Bounds(warn=0.3, stop=0.6),
        description="repeated share: rows also in the span before, minus that span's own share",
    )
    value: Bounds = Field(
        default=Bounds(warn=0.02, stop=0.25),
        description=(
            "usual share of the rows with a value of a slice or categorical feature that has vanished, with its items"
        ),
    )


class LabelsConfig(Record):
    """Limits of labels that have changed their meaning; judged with heads.classification."""

    one_class: Bounds = Field(
        default=Bounds(warn=0.01, stop=0.05),
        description="usual share of a class that no row has any more, over all rows and for each value of a slice",
    )
    told: Bounds = Field(
        default=Bounds(warn=0.2, stop=0.5),
        description=(
            "2 AUC - 1 by which one feature, or its absence, tells the class of a row: the rise over earlier spans"
        ),
    )


EVENT_WEIGHT = "event_weight"  # the column that validate makes from `validate.events`


class EventConfig(Record):
    """The label and the weight of the rows with one event."""

    label: float | None = Field(default=None, description="label of the row; null: none")
    weight: float = Field(
        default=1.0, ge=0, description="weight of the row, in the column `event_weight`, which train.row_weight names"
    )


class EventsConfig(Record):
    """Events of a log, such as clicks and purchases, as labels and weights of its rows."""

    column: str = Field(default="event", min_length=1, description="column with the event of each row")
    values: dict[str, EventConfig] = Field(min_length=1, description="label and weight by the value of the column")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        """Convert numbers and booleans to names, since YAML reads `{1: ...}` as a number."""
        if isinstance(values, dict) and isinstance(events := values.get("values"), dict):
            return values | {"values": {class_name(name): each for name, each in events.items()}}
        return values


class ValidateConfig(WorkersConfig):
    """Limits for the rows of a run."""

    workers: Positive = ONE_WORKER
    min_rows: Positive = Field(description="least number of clean rows; fewer stop the run")
    # Beside: this key only chooses the window, which is in the run's key itself, as is the parent.
    small_spans: Literal["stop", "merge"] = beside(
        description="fewer rows than min_rows: `stop` the run, or `merge` the span with the next",
    )
    max_bad_share: Share = Field(description="greatest share of bad rows; more stop the run")
    min_text_chars: Positive = Field(description="shortest query or item text, in characters")
    max_text_chars: Positive = Field(description="longest query or item text, in characters")
    label_min: float = Field(description="lowest label")
    label_max: float = Field(description="highest label")
    numeric_min: float = Field(description="lowest value of any numeric feature")
    numeric_max: float = Field(description="highest value of any numeric feature")
    drift: DriftConfig = DriftConfig()
    items: ItemsConfig = ItemsConfig()
    signs: SignsConfig = SignsConfig()
    before: BeforeConfig = BeforeConfig()
    labels: LabelsConfig = LabelsConfig()
    max_unseen_share: Share = Field(
        default=0.1,
        description="share of rows with a category that the parent has not seen, above which it warns",
    )
    max_unknown_token_share: Share = Field(
        default=0.05,
        description="share of tokens that the parent's tokenizer does not know, above which it warns",
    )
    events: EventsConfig | None = Field(
        default=None, description="labels and weights by the event of a row; null: no events"
    )
    suites: tuple[str, ...] = Field(
        default=(),
        description="YAML files with lists of expectations, here or `s3://`; read when the configuration is loaded",
    )
    expectations: tuple[ExpectationConfig, ...] = Field(
        default=(), description="expectations of your own on the rows of a run"
    )

    @property
    def made_columns(self) -> tuple[str, ...]:
        """The columns that validate adds to the rows."""
        return (EVENT_WEIGHT,) if self.events is not None else ()
