"""The expectations of great-expectations that `validate.expectations` may name, and what each one needs.

A span is judged in pieces, so an expectation about single rows, about the columns, or about a number that can be added
up piece by piece can be judged; one that needs all rows at once is refused with the reason. great-expectations takes
seconds to import, and a configuration is read by commands that must be quick, so the names are written down here.
"""

import difflib
import enum
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Argument = type | tuple[type, ...]

NUMBER: Argument = (int, float)
BOUND: Argument = (int, float, str)  # dates and times are compared as well


class Scope(enum.StrEnum):
    """What an expectation judges."""

    rows = "rows"
    columns = "columns"
    number = "number"


class Known(NamedTuple):
    """`column`: whether it is about one column, which it then needs. The types are those that YAML gives."""

    scope: Scope
    needed: Mapping[str, Argument] = {}
    optional: Mapping[str, Argument] = {}
    column: bool = True


_STRICT: dict[str, Argument] = {"strict_min": bool, "strict_max": bool}
_BETWEEN: dict[str, Argument] = {"min_value": BOUND, "max_value": BOUND, **_STRICT}
_NUMBERS: dict[str, Argument] = {"min_value": NUMBER, "max_value": NUMBER, **_STRICT}
_PAIR: dict[str, Argument] = {"column_A": str, "column_B": str}
_IGNORE: dict[str, Argument] = {"ignore_row_if": str}
_LIST: dict[str, Argument] = {"column_list": list}

KNOWN: dict[str, Known] = {
    "expect_column_values_to_be_between": Known(Scope.rows, {}, _BETWEEN),
    "expect_column_values_to_be_in_set": Known(Scope.rows, {"value_set": list}),
    "expect_column_values_to_not_be_in_set": Known(Scope.rows, {"value_set": list}),
    "expect_column_values_to_be_null": Known(Scope.rows),
    "expect_column_values_to_not_be_null": Known(Scope.rows),
    "expect_column_value_lengths_to_be_between": Known(Scope.rows, {}, _NUMBERS),
    "expect_column_value_lengths_to_equal": Known(Scope.rows, {"value": NUMBER}),
    "expect_column_values_to_match_regex": Known(Scope.rows, {"regex": str}),
    "expect_column_values_to_not_match_regex": Known(Scope.rows, {"regex": str}),
    "expect_column_values_to_match_regex_list": Known(Scope.rows, {"regex_list": list}, {"match_on": str}),
    "expect_column_values_to_not_match_regex_list": Known(Scope.rows, {"regex_list": list}),
    "expect_column_values_to_match_strftime_format": Known(Scope.rows, {"strftime_format": str}),
    "expect_column_values_to_be_dateutil_parseable": Known(Scope.rows),
    "expect_column_values_to_be_json_parseable": Known(Scope.rows),
    "expect_column_values_to_match_json_schema": Known(Scope.rows, {"json_schema": dict}),
    "expect_column_pair_values_to_be_equal": Known(Scope.rows, _PAIR, _IGNORE, column=False),
    "expect_column_pair_values_a_to_be_greater_than_b": Known(
        Scope.rows, _PAIR, {"or_equal": bool, **_IGNORE}, column=False
    ),
    "expect_column_pair_values_to_be_in_set": Known(
        Scope.rows, {**_PAIR, "value_pairs_set": list}, _IGNORE, column=False
    ),
    "expect_multicolumn_sum_to_equal": Known(Scope.rows, {**_LIST, "sum_total": NUMBER}, _IGNORE, column=False),
    "expect_multicolumn_values_to_be_equal": Known(Scope.rows, _LIST, _IGNORE, column=False),
    "expect_select_column_values_to_be_unique_within_record": Known(Scope.rows, _LIST, _IGNORE, column=False),
    "expect_column_to_exist": Known(Scope.columns, {}, {"column_index": int}),
    "expect_table_column_count_to_equal": Known(Scope.columns, {"value": int}, column=False),
    "expect_table_column_count_to_be_between": Known(
        Scope.columns, {}, {"min_value": int, "max_value": int}, column=False
    ),
    "expect_table_columns_to_match_set": Known(
        Scope.columns, {"column_set": list}, {"exact_match": bool}, column=False
    ),
    "expect_table_columns_to_match_ordered_list": Known(Scope.columns, _LIST, column=False),
    "expect_table_row_count_to_equal": Known(Scope.number, {"value": int}, column=False),
    "expect_table_row_count_to_be_between": Known(
        Scope.number, {}, {"min_value": int, "max_value": int}, column=False
    ),
    "expect_column_mean_to_be_between": Known(Scope.number, {}, {"min_value": NUMBER, "max_value": NUMBER}),
    "expect_column_min_to_be_between": Known(Scope.number, {}, {"min_value": NUMBER, "max_value": NUMBER}),
    "expect_column_max_to_be_between": Known(Scope.number, {}, {"min_value": NUMBER, "max_value": NUMBER}),
    "expect_column_sum_to_be_between": Known(Scope.number, {}, {"min_value": NUMBER, "max_value": NUMBER}),
    "expect_column_stdev_to_be_between": Known(Scope.number, {}, {"min_value": NUMBER, "max_value": NUMBER}),
    "expect_column_proportion_of_non_null_values_to_be_between": Known(
        Scope.number, {}, {"min_value": NUMBER, "max_value": NUMBER}
    ),
}  # fmt: skip
_BOUNDS = ("min_value", "max_value")

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


def class_name(name: str) -> str:
    """Return the name of an expectation's class in great-expectations."""
    return "".join(part.capitalize() for part in name.split("_"))


def check_expectation(name: str, column: str | None, arguments: Mapping[str, Any]) -> None:
    """Check that an expectation can be judged with these arguments.

    Raises:
        ValueError: the name is unknown or can't be judged in pieces, the column is missing or superfluous, or an
            argument is missing, unknown or of a wrong type; names it and what is right.
    """
    if name in REFUSED:
        raise ValueError(f"{name} {REFUSED[name]}")
    if name not in KNOWN:
        near = difflib.get_close_matches(name, KNOWN, n=3, cutoff=0.4)
        raise ValueError(f"unknown expectation {name!r}; the nearest are {', '.join(near or list(KNOWN)[:3])}")
    known = KNOWN[name]
    if known.column != (column is not None):
        raise ValueError(f"{name} needs a column" if known.column else f"{name} has no column; it has {_listed(known)}")
    if missing := [argument for argument in known.needed if argument not in arguments]:
        raise ValueError(f"{name} needs the argument {missing[0]}; it has {_listed(known)}")
    allowed = {**known.needed, **known.optional}
    if unknown := [argument for argument in arguments if argument not in allowed]:
        raise ValueError(f"{name} has no argument {unknown[0]!r}; it has {_listed(known)}")
    for argument, value in arguments.items():
        wanted = allowed[argument] if isinstance(allowed[argument], tuple) else (allowed[argument],)
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            names = " or ".join(kind.__name__ for kind in wanted)
            raise ValueError(f"{name}: {argument} must be {names}, got {value!r}")
    if "min_value" in known.optional and not any(bound in arguments for bound in _BOUNDS):
        raise ValueError(f"{name} needs min_value, max_value or both")
    _check_values(name, arguments)


def _check_values(name: str, arguments: Mapping[str, Any]) -> None:
    for argument in ("regex", "regex_list"):
        value = arguments.get(argument, [])
        for expression in [value] if isinstance(value, str) else value:
            try:
                re.compile(expression)
            except (re.error, TypeError) as error:
                raise ValueError(f"{name}: {expression!r} is not a regular expression: {error}") from error
    low, high = (arguments.get(bound) for bound in _BOUNDS)
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise ValueError(f"{name}: min_value {low} is above max_value {high}")


def _listed(known: Known) -> str:
    return ", ".join((*known.needed, *known.optional)) or "no arguments"
