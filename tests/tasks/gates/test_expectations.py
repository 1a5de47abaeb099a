import math

import pandas as pd
import pytest

from tasks.foundation.errors import CodeError
from tasks.gates.expectations import Limit, between, in_set, judge, judge_numbers, not_null


def test_findings_name_the_rows_and_keep_the_order():
    frame = pd.DataFrame({"price": [3.0, -1.0, math.nan, math.inf], "kind": ["a", None, "b", "a"]})
    findings = judge(
        frame,
        [between("range", "price", 0.0, 9.0), not_null("kind there", "kind"), in_set("kind known", "kind", ["a"])],
    )
    assert list(findings) == ["range", "kind there", "kind known"]
    assert [list(f.unexpected) for f in findings.values()] == [[1, 3], [1], [2]]
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
    with pytest.raises(CodeError, match=rf"could not judge 'range' on 'price': .*{message}"):
        judge(frame, [between("range", "price", 0.0, 1.0)])


def test_no_progress_bars(capfd: pytest.CaptureFixture[str]):
    judge(pd.DataFrame({"price": [1.0, 2.0]}), [between("range", "price", 0.0, 9.0)])
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("number", "limit", "passed"),
    [
        (1.0, Limit(1.0, None), True),
        (0.999, Limit(1.0, None), False),
        (1, Limit(None, 1), True),
        (1.001, Limit(None, 1), False),
        (math.nan, Limit(0.0, None), False),
        (None, Limit(0.0, None), False),
        (math.inf, Limit(0.0, None), False),
        (-math.inf, Limit(None, 0.0), False),
    ],
)
def test_numbers_within_limits(number: float | None, limit: Limit, passed: bool):
    assert judge_numbers({"x": number, "good": 0.0}, {"x": limit, "good": Limit(0.0, 0.0)}) == {
        "x": passed,
        "good": True,
    }
