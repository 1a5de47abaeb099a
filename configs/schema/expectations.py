"""The expectations of great-expectations that `validate.expectations` may name, and the scope of each.

A span is judged in pieces, so an expectation about single rows, about the columns, or about a number that can be added
up piece by piece can be judged; one that needs all rows at once is refused with the reason. The arguments are checked
by great-expectations itself, which takes seconds to import: see tasks/quality/expectations.py.
"""

import difflib
import enum
from collections.abc import Mapping
from typing import Any


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
