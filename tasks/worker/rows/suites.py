"""The user's own expectations: judged by great-expectations piece by piece, and summed up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from configs.schema.validation import ExpectationConfig, Scope
from tasks.contracts.outcomes import Check
from tasks.foundation.errors import CodeError, ConfigError
from tasks.foundation.nouns import plural
from tasks.quality.expectations import Expectation, Finding, Limit, check_arguments, judge


@dataclass
class Moments:
    """Running statistics of a numeric column."""

    rows: int = 0
    values: int = 0
    total: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    low: float = math.inf
    high: float = -math.inf

    def add(self, numbers: np.ndarray) -> None:
        """Add values, NaN for null (Chan et al. 1979)."""
        known = numbers[~np.isnan(numbers)]
        self.rows += len(numbers)
        if not len(known):
            return
        many = self.values + len(known)
        distance = float(known.mean()) - self.mean
        self.squares += float(((known - known.mean()) ** 2).sum()) + distance**2 * self.values * len(known) / many
        self.mean += distance * len(known) / many
        self.total += float(known.sum())
        self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))
        self.values = many

    def number(self, expectation: str) -> float | None:
        """Return the number that an expectation judges; None if no value exists."""
        if expectation == "expect_column_proportion_of_non_null_values_to_be_between":
            return self.values / self.rows if self.rows else None
        if not self.values:
            return None
        numbers = {"mean": self.mean, "min": self.low, "max": self.high, "sum": self.total}
        kind = expectation.removeprefix("expect_column_").removesuffix("_to_be_between")
        if kind == "stdev":
            return math.sqrt(self.squares / (self.values - 1)) if self.values > 1 else None
        return numbers[kind]


@dataclass
class _Tally:
    judged: int = 0
    unexpected: int = 0
    moments: Moments = field(default_factory=Moments)
    wrong_spans: list[str] = field(default_factory=list)


class OwnExpectations:
    """The expectations of `validate.expectations`, and their results so far."""

    def __init__(self, expectations: Sequence[ExpectationConfig]) -> None:
        """Raise ConfigError if an expectation has unsuitable arguments."""
        check_arguments(expectations)
        self._named: dict[str, ExpectationConfig] = {}
        for each in expectations:
            name = f"{each.expectation} on {', '.join(each.columns)}" if each.columns else each.expectation
            same = sum(key == name or key.startswith(f"{name} (") for key in self._named)
            self._named[f"{name} ({same + 1})" if same else name] = each
        self._tallies = {name: _Tally() for name in self._named}

    def judge_columns(self, span: str, columns: Sequence[str]) -> None:
        """Judge the names of a span's columns."""
        named = self._of(Scope.columns)
        for name, finding in _judged(pd.DataFrame(columns=list(columns)), named).items():
            if not finding.passed:
                self._tallies[name].wrong_spans.append(span)

    @property
    def of_rows(self) -> dict[str, ExpectationConfig]:
        """The expectations that are judged row by row, by name."""
        return self._of(Scope.rows)

    def count_rows(self, found: Mapping[str, Finding]) -> dict[str, Finding]:
        """Count what `judge_own` found in a piece; return the findings whose rows are bad, by reason."""
        for name, finding in found.items():
            self._tallies[name].judged += finding.judged
            self._tallies[name].unexpected += len(finding.unexpected)
        return {f"not as in {name}": finding for name, finding in found.items() if self._named[name].quarantine}

    def add_clean(self, clean: pa.Table) -> None:
        """Add clean rows to the statistics, which are judged at the end."""
        for name, each in self._of(Scope.number).items():
            tally = self._tallies[name]
            tally.judged += len(clean)
            if each.column is not None:
                tally.moments.add(_numbers(clean, each))

    def checks(self) -> list[Check]:
        """Return one check per expectation, in the order of the configuration."""
        numbers = {name: self._number(name, each) for name, each in self._of(Scope.number).items()}
        limits = {name: _limit(self._named[name]) for name in numbers}
        shares = {name: self._share(name) for name in self._of(Scope.rows)}
        passed = {name: limits[name].admits(number) for name, number in numbers.items()}
        passed |= {name: Limit(self._named[name].mostly, None).admits(share) for name, share in shares.items()}
        checks = []
        for name, each in self._named.items():
            tally = self._tallies[name]
            match each.scope:
                case Scope.rows:
                    observed, sentence = float(tally.unexpected), _rows_sentence(tally, each)
                case Scope.number:
                    observed, sentence = numbers[name], _number_sentence(numbers[name], tally, limits[name])
                case Scope.columns:
                    observed = float(len(tally.wrong_spans))
                    wrong = ", ".join(tally.wrong_spans)
                    sentence = (
                        f"Not so in span {wrong}: {each.arguments}." if wrong else "So in each span of the window."
                    )
            yes = passed.get(name, not tally.wrong_spans)
            checks.append(Check(name=name, passed=yes, severity=each.severity, observed=observed, sentence=sentence))
        return checks

    def _of(self, scope: Scope) -> dict[str, ExpectationConfig]:
        return {name: each for name, each in self._named.items() if each.scope is scope}

    def _share(self, name: str) -> float:
        tally = self._tallies[name]
        return (tally.judged - tally.unexpected) / tally.judged if tally.judged else 1.0

    def _number(self, name: str, each: ExpectationConfig) -> float | None:
        tally = self._tallies[name]
        return float(tally.judged) if each.column is None else tally.moments.number(each.expectation)


def judge_own(named: Mapping[str, ExpectationConfig], rows: pa.Table) -> dict[str, Finding]:
    """Judge expectations of rows on a piece of them; return the findings by name.

    Raises:
        ConfigError: great-expectations can't judge an expectation on the values of its column.
    """
    if not named or not len(rows):
        return {}
    columns = dict.fromkeys(column for each in named.values() for column in each.columns)
    return _judged(pd.DataFrame({column: rows[column].to_pandas() for column in columns}), named)


def _judged(frame: pd.DataFrame, named: Mapping[str, ExpectationConfig]) -> dict[str, Finding]:
    """Judge expectations one by one, so that the error names one that does not fit its column.

    Raises:
        ConfigError: great-expectations can't judge an expectation on the values of its column.
    """
    found = {}
    for name, each in named.items():
        try:
            found |= judge(frame, [Expectation(name, each.kind, each.column or "", each.arguments)])
        except (CodeError, ValueError, TypeError) as error:
            raise ConfigError(f"validate.expectations: {name} can't be judged: {error}") from error
    return found


def _numbers(clean: pa.Table, each: ExpectationConfig) -> np.ndarray:
    assert each.column is not None
    column = clean[each.column]
    if each.expectation == "expect_column_proportion_of_non_null_values_to_be_between":
        return np.where(column.is_null().to_numpy(), np.nan, 1.0)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise ConfigError(
            f"validate.expectations: {each.expectation} on {each.column}, which is {column.type}, not numbers; "
            f"name it in features.numeric, or leave the expectation out"
        )
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _limit(each: ExpectationConfig) -> Limit:
    if "value" in each.arguments:
        return Limit(each.arguments["value"], each.arguments["value"])
    return Limit(each.arguments.get("min_value"), each.arguments.get("max_value"))


def _rows_sentence(tally: _Tally, each: ExpectationConfig) -> str:
    share = tally.unexpected / tally.judged if tally.judged else 0.0
    then = "; they are set apart" if each.quarantine and tally.unexpected else ""
    return (
        f"{tally.unexpected} of {tally.judged} rows with a value do not pass ({share:.2%}); at most "
        f"{1 - each.mostly:.2%} may{then}."
    )


def _number_sentence(number: float | None, tally: _Tally, limit: Limit) -> str:
    if number is None:
        return f"There is no value in {plural(tally.judged, 'clean row')} to judge."
    bounds = (
        f"at least {limit.low:.6g}" if limit.low is not None else "",
        f"at most {limit.high:.6g}" if limit.high is not None else "",
    )
    return f"{number:.6g} over {plural(tally.judged, 'clean row')}; {' and '.join(filter(None, bounds))} is required."
