"""A thin layer over great-expectations: check a DataFrame or single numbers, and name the unexpected rows.

It reads no configuration and knows no severity: the caller decides what a failure means. great-expectations takes
seconds to import, so it is imported where it is used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.foundation.errors import CodeError

if TYPE_CHECKING:
    import pandas as pd


class Expectation(NamedTuple):
    """One expectation; `kind` is its class in great-expectations. `column` is empty if it is not about one."""

    name: str
    kind: str
    column: str
    arguments: Mapping[str, Any]


class Finding(NamedTuple):
    """The result of an expectation; `unexpected` are positions of rows, ascending, of the rows that were `judged`."""

    passed: bool
    unexpected: Sequence[int]
    judged: int = 0


class Limit(NamedTuple):
    """Inclusive bounds of a number; None means no bound. At least one bound is needed."""

    low: float | None
    high: float | None


def not_null(name: str, column: str) -> Expectation:
    """Expect that every row has a value; NaN is not a value."""
    return Expectation(name, "ExpectColumnValuesToNotBeNull", column, {})


def between(name: str, column: str, low: float | None, high: float | None) -> Expectation:
    """Expect that every value is within both bounds. NaN, null and an empty frame pass."""
    return Expectation(name, "ExpectColumnValuesToBeBetween", column, {"min_value": low, "max_value": high})


def in_set(name: str, column: str, values: Sequence[str]) -> Expectation:
    """Expect that every value is one of `values`. Null and an empty frame pass."""
    return Expectation(name, "ExpectColumnValuesToBeInSet", column, {"value_set": list(values)})


def judge(frame: pd.DataFrame, expectations: Iterable[Expectation]) -> dict[str, Finding]:
    """Check a frame against expectations with distinct names; return the findings by name, in the same order.

    Raises:
        CodeError: great-expectations could not check an expectation (a missing column, a type that it can't compare);
            that is neither a pass nor a failure.
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


def judge_numbers(numbers: Mapping[str, float | None], limits: Mapping[str, Limit]) -> dict[str, bool]:
    """Return whether each number is within its limit, checked on a table of one row.

    None, NaN and infinite numbers fail, although `between` alone would pass NaN.
    """
    import pandas as pd

    if not limits:
        return {}
    row = {name: numbers[name] for name in limits}
    finite = {name: [math.nan if x is None or math.isinf(x) else float(x)] for name, x in row.items()}
    findings = judge(
        pd.DataFrame(finite, dtype="float64"),
        [
            *(not_null(f"{name}: a number", name) for name in limits),
            *(between(f"{name}: within", name, limit.low, limit.high) for name, limit in limits.items()),
        ],
    )
    return {name: findings[f"{name}: a number"].passed and findings[f"{name}: within"].passed for name in limits}


def load_great_expectations() -> Any:
    """Import the library; the first import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies import deprecated modules
        import great_expectations
    return great_expectations


def _exception(info: Mapping[str, Any] | None) -> str | None:
    """Return the message of an exception inside great-expectations, which reports it flat or by metric."""
    nested = [value for value in (info or {}).values() if isinstance(value, Mapping)]
    for part in (info or {}, *nested):
        if part.get("raised_exception"):
            return str(part.get("exception_message"))
    return None
