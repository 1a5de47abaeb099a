"""Limits of numbers, and expectations of single rows, which great-expectations checks.

The caller decides on the severity of a failure. great-expectations takes seconds to import, so functions import it.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from configs.schema.validation import ExpectationConfig
from tasks.foundation.errors import CodeError, ConfigError


class Limit(NamedTuple):
    """Inclusive bounds of a number; None means no bound."""

    low: float | None
    high: float | None

    def admits(self, number: float | None) -> bool:
        """Return True if the number is within both bounds; False for None, NaN and infinite numbers."""
        if number is None or not math.isfinite(number):
            return False
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        return bool(low <= number <= high)


if TYPE_CHECKING:
    import pandas as pd


# Arguments of every expectation, without effect here.
_SHARED = ("batch_id", "mostly", "row_condition", "condition_parser")


class Expectation(NamedTuple):
    """One expectation; `kind` is its class in great-expectations. `column` is empty if it has none."""

    name: str
    kind: str
    column: str
    arguments: Mapping[str, Any]


class Finding(NamedTuple):
    """The result of an expectation: positions of unexpected rows, ascending, and the number of rows with a value."""

    passed: bool
    unexpected: Sequence[int]
    judged: int = 0


def not_null(name: str, column: str) -> Expectation:
    """Expect that every row has a value; NaN is not a value."""
    return Expectation(name, "ExpectColumnValuesToNotBeNull", column, {})


def between(name: str, column: str, low: float | None, high: float | None) -> Expectation:
    """Expect that every value is within both bounds. NaN, null and an empty frame pass."""
    return Expectation(name, "ExpectColumnValuesToBeBetween", column, {"min_value": low, "max_value": high})


def check_arguments(expectations: Iterable[ExpectationConfig]) -> None:
    """Let great-expectations check the arguments of expectations, without any rows.

    Raises:
        ConfigError: an argument is missing, unknown or unsuitable; names it, and the known arguments.
    """
    for each in expectations:
        known = load_great_expectations().expectations
        own = getattr(known, each.kind)
        shared = {*known.Expectation.__fields__, *_SHARED}
        suitable = [name for name in own.__fields__ if name not in shared]
        given = each.arguments if each.column is None else {"column": each.column, **each.arguments}
        problem = next((f"there is no argument {name!r}" for name in given if name not in suitable), "")
        problem = problem or _unsuitable(own, given)
        if problem:
            names = ", ".join(suitable) or "no arguments"
            raise ConfigError(f"validate.expectations: {each.expectation}: {problem}; it has {names}")


def _unsuitable(own: Any, given: Mapping[str, Any]) -> str:
    """Return the first missing or unsuitable argument, with the reason; empty if all are suitable."""
    try:
        own(**given)
        for name in ("regex", "regex_list"):
            for expression in [given[name]] if isinstance(given.get(name), str) else given.get(name, ()):
                re.compile(expression)
    except re.error as error:
        return f"{error.pattern!r} is not a regular expression: {error}"
    except ValueError as error:  # pydantic's
        first = error.errors()[0]  # pyright: ignore[reportAttributeAccessIssue]
        return f"{'.'.join(map(str, first['loc'])).removeprefix('__root__') or 'arguments'}: {first['msg']}"
    return ""


def judge(frame: pd.DataFrame, expectations: Iterable[Expectation]) -> dict[str, Finding]:
    """Check a frame against expectations with distinct names; return the findings by name, in the same order.

    Raises:
        CodeError: great-expectations could not check an expectation (missing column, incomparable type), which is
            neither a pass nor a failure.
    """
    gx = load_great_expectations()
    wanted = {expectation.name: expectation for expectation in expectations}
    suite = gx.ExpectationSuite(
        name="suite",
        expectations=[
            getattr(gx.expectations, e.kind)(
                **({"column": e.column} if e.column else {}), **e.arguments, meta={"name": e.name}
            )
            for e in wanted.values()
        ],
    )
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    whole = context.data_sources.add_pandas("frames").add_dataframe_asset("frame")
    batch = whole.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame.reset_index(drop=True)})
    # No index columns: naming them costs seconds per hundred thousand bad rows; the position is enough.
    results = batch.validate(suite, result_format={"result_format": "COMPLETE", "include_unexpected_rows": False})
    found: dict[str, Finding] = {}
    for result in results.results:
        name = result.expectation_config.meta["name"]
        if message := _exception(result.exception_info):
            raise CodeError(f"great-expectations could not judge {name!r} on {wanted[name].column!r}: {message}")
        numbers = result.result
        judged = numbers.get("element_count", 0) - numbers.get("missing_count", 0)
        found[name] = Finding(bool(result.success), sorted(numbers.get("unexpected_index_list") or ()), judged)
    return {name: found[name] for name in wanted}


def load_great_expectations() -> Any:
    """Import the library; the first import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies import deprecated modules
        import great_expectations
    return great_expectations


def _exception(info: Mapping[str, Any] | None) -> str | None:
    """Return the message of an exception inside great-expectations, which reports it directly or by metric."""
    nested = [value for value in (info or {}).values() if isinstance(value, Mapping)]
    for part in (info or {}, *nested):
        if part.get("raised_exception"):
            return str(part.get("exception_message"))
    return None
