"""A thin layer over great-expectations: judge a DataFrame, or single numbers, and say which rows were unexpected.

It reads no configuration and knows no severity: what a failure means is up to the caller. great-expectations
takes seconds to import, so it is imported where it is used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.errors import CodeError

if TYPE_CHECKING:
    import pandas as pd


class Expectation(NamedTuple):
    """One expectation on one column; `kind` is the class's name in great-expectations, `arguments` are its."""

    name: str
    kind: str
    column: str
    arguments: Mapping[str, Any]


class Finding(NamedTuple):
    """What came of an expectation; `unexpected` are positions of rows, ascending."""

    passed: bool
    unexpected: Sequence[int]


class Limit(NamedTuple):
    """Bounds of a number, both inclusive; None is no bound. At least one must be given."""

    low: float | None
    high: float | None


def not_null(name: str, column: str) -> Expectation:
    """Every row has a value (NaN is none)."""
    return Expectation(name, "ExpectColumnValuesToNotBeNull", column, {})


def between(name: str, column: str, low: float | None, high: float | None) -> Expectation:
    """Every value that is there lies within both bounds. NaN, null and an empty frame pass."""
    return Expectation(name, "ExpectColumnValuesToBeBetween", column, {"min_value": low, "max_value": high})


def in_set(name: str, column: str, values: Sequence[str]) -> Expectation:
    """Every value that is there is one of `values`. Null and an empty frame pass."""
    return Expectation(name, "ExpectColumnValuesToBeInSet", column, {"value_set": list(values)})


def judge(frame: pd.DataFrame, expectations: Iterable[Expectation]) -> dict[str, Finding]:
    """Hold a frame against expectations; the findings by name, in the order given. Names must differ.

    Raises:
        CodeError: great-expectations could not judge one (a column that is not there, a type that it can't
            compare); that is neither passed nor failed.
    """
    gx = load_great_expectations()
    wanted = {expectation.name: expectation for expectation in expectations}
    suite = gx.ExpectationSuite(
        name="suite",
        expectations=[
            getattr(gx.expectations, e.kind)(column=e.column, **e.arguments, meta={"name": e.name})
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
        found[name] = Finding(bool(result.success), sorted(result.result.get("unexpected_index_list") or ()))
    return {name: found[name] for name in wanted}


def judge_numbers(numbers: Mapping[str, float | None], limits: Mapping[str, Limit]) -> dict[str, bool]:
    """Whether each number lies within its limit, judged on a table of one row.

    A number that is None, NaN or infinite fails: `between` alone would let NaN pass.
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
    """The library, loaded; the first time that takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies import deprecated modules; nobody here can act on that
        import great_expectations
    return great_expectations


def _exception(info: Mapping[str, Any] | None) -> str | None:
    """The message of an exception inside great-expectations, which reports it either flat or by metric."""
    nested = [value for value in (info or {}).values() if isinstance(value, Mapping)]
    for part in (info or {}, *nested):
        if part.get("raised_exception"):
            return str(part.get("exception_message"))
    return None
