"""Expectations of rows, and limits of numbers."""

import math

import pandas as pd
import pytest

from configs.schema.validation import SCOPES, ExpectationConfig
from tasks.foundation.errors import CodeError, ConfigError
from tasks.quality.expectations import Limit, between, check_arguments, judge, load_great_expectations, not_null


def test_findings_name_the_rows_and_keep_the_order():
    frame = pd.DataFrame({"price": [3.0, -1.0, math.nan, math.inf], "kind": ["a", None, "b", "a"]})
    findings = judge(
        frame,
        [between("range", "price", 0.0, 9.0), not_null("kind there", "kind")],
    )
    assert list(findings) == ["range", "kind there"]
    assert [list(f.unexpected) for f in findings.values()] == [[1, 3], [1]]
    assert not any(f.passed for f in findings.values())


def test_positions_do_not_depend_on_the_index():
    frame = pd.DataFrame({"price": [1.0, -1.0]}, index=[40, 41])
    assert list(judge(frame, [between("range", "price", 0.0, None)])["range"].unexpected) == [1]
    assert judge(frame, [between("range", "price", -1.0, 1.0)])["range"].passed


@pytest.mark.parametrize(
    ("frame", "message"),
    [(pd.DataFrame({"other": [1.0]}), "does not exist"), (pd.DataFrame({"price": ["cheap"]}), "same type")],
)
def test_an_expectation_that_cannot_be_judged_is_a_code_error(frame: pd.DataFrame, message: str):
    with pytest.raises(CodeError, match=rf"'range' on 'price': .*{message}"):
        judge(frame, [between("range", "price", 0.0, 1.0)])


def test_no_progress_bars(capfd: pytest.CaptureFixture[str]):
    judge(pd.DataFrame({"price": [1.0, 2.0]}), [between("range", "price", 0.0, 9.0)])
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("name", SCOPES)
def test_an_expectation_that_may_be_named_is_one_of_the_library(name: str):
    bounds = {"value": 1} if name.endswith("count_to_equal") else {"min_value": 1}
    config = ExpectationConfig(expectation=name, arguments=bounds)
    assert hasattr(load_great_expectations().expectations, config.kind)


@pytest.mark.parametrize(
    ("name", "column", "arguments", "message"),
    [
        ("expect_column_values_to_be_in_set", "a", {}, "value_set: field required; it has column, value_set"),
        ("expect_column_values_to_be_in_set", None, {"value_set": ["b"]}, "column: field required"),
        ("expect_column_values_to_not_be_null", "a", {"b": 1}, "there is no argument 'b'; it has column"),
        ("expect_column_values_to_be_in_set", "a", {"value_set": ["b"], "mostly": 0.5}, "no argument 'mostly'"),
        ("expect_table_columns_to_match_set", "a", {"column_set": ["b"]}, "there is no argument 'column'"),
        ("expect_table_column_count_to_equal", None, {"value": "many"}, "value: value is not a valid integer"),
        ("expect_column_values_to_be_between", "a", {}, "min_value and max_value cannot both be None"),
        ("expect_column_values_to_match_regex", "a", {"regex": "("}, "'(' is not a regular expression"),
        ("expect_column_values_to_match_regex_list", "a", {"regex_list": ["a", "("]}, "'(' is not a regular"),
    ],
)
def test_arguments_are_checked_by_the_library(
    name: str, column: str | None, arguments: dict[str, object], message: str
):
    good = ExpectationConfig(expectation="expect_column_to_exist", column="a")
    with pytest.raises(ConfigError) as raised:
        check_arguments([good, ExpectationConfig(expectation=name, column=column, arguments=arguments)])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("number", "limit", "passed"),
    [
        (1.0, Limit(1.0, None), True),
        (0.999, Limit(1.0, None), False),
        (1, Limit(None, 1), True),
        (1.001, Limit(None, 1), False),
        (-0.0, Limit(0.0, 0.0), True),
        (math.nan, Limit(0.0, None), False),
        (None, Limit(0.0, None), False),
        (math.inf, Limit(0.0, None), False),
        (-math.inf, Limit(None, 0.0), False),
    ],
)
def test_numbers_within_limits(number: float | None, limit: Limit, passed: bool):
    assert limit.admits(number) is passed
