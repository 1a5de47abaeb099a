import math
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from configs.load import load_config
from configs.schema.gates import GateConfig
from tasks.contracts.evaluation import Role, Verdict, refused
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.quality.comparisons import Measured
from tasks.quality.verdicts import judge
from tests.support.measures.results import row_results
from tests.support.pages.golden import Golden


def gate(metric: str = "recall@10", **changes: Any) -> GateConfig:
    values = {"direction": "higher", "threshold": -0.01, "baseline": "champion", "severity": "critical"}
    return GateConfig.model_validate({"metric": metric, **values, **changes})


def measured(challenger: Mapping[str, float], champion: Mapping[str, float] | None) -> Measured:
    champions = {} if champion is None else {Role.champion: champion}
    return Measured({Role.challenger: challenger, **champions})


def verdict(value: float, champion: float | None, **changes: Any) -> Verdict:
    champions = None if champion is None else {"recall@10": champion}
    (only,) = judge(measured({"recall@10": value}, champions), [gate(**changes)])
    return only


@pytest.mark.parametrize(
    ("value", "champion", "changes", "passed", "ending"),
    [
        (0.496, 0.484, {}, True, "is 0.0120 above the champion's 0.4840; allowed is a drop of 0.0100."),
        (0.47, 0.484, {}, False, "is 0.0140 below the champion's 0.4840; allowed is a drop of 0.0100."),
        (0.474, 0.484, {}, True, "is 0.0100 below the champion's 0.4840; allowed is a drop of 0.0100."),
        (0.3 - 0.1, 0.3, {"threshold": -0.1}, True, "0.3000; allowed is a drop of 0.1000."),
        (0.47399, 0.484, {}, False, "is 0.01001 below the champion's 0.48400; allowed is a drop of 0.01000."),
        (0.5, 0.5, {"threshold": 0.0}, True, "equals the champion's; no drop is allowed."),
        (0.5, 0.5, {"threshold": 0.02}, False, "equals the champion's; required is a gain of 0.0200."),
        (0.6, 0.5, {"direction": "lower", "threshold": 0.05}, False, "allowed is a rise of 0.0500."),
        (0.55, 0.5, {"direction": "lower", "threshold": 0.05}, True, "allowed is a rise of 0.0500."),
        (0.4, 0.5, {"direction": "lower", "threshold": -0.05}, True, "required is a drop of 0.0500."),
        (0.6, 0.5, {"direction": "lower", "threshold": 0.0}, False, "no rise is allowed."),
    ],
)  # fmt: skip
def test_gates_against_the_champion(value: float, champion: float, changes: dict[str, Any], passed: bool, ending: str):
    found = verdict(value, champion, **changes)
    assert (found.metric, found.severity, found.passed) == ("recall@10", "critical", passed)
    assert (found.value, found.baseline) == (value, champion)
    assert found.sentence.endswith(ending)


@pytest.mark.parametrize(
    ("value", "changes", "passed", "sentence"),
    [
        (0.49, {"threshold": 0.49}, True, "recall@10 0.4900; at least 0.4900 is required."),
        (0.1 + 0.2, {"threshold": 0.3, "direction": "lower"}, True, "recall@10 0.3000; at most 0.3000 is required."),
        (0.48996, {"threshold": 0.49}, False, "recall@10 0.48996; at least 0.49000 is required."),
        (0.7, {"threshold": 0.6, "direction": "lower"}, False, "recall@10 0.7000; at most 0.6000 is required."),
    ],
)
def test_gates_without_a_baseline(value: float, changes: dict[str, Any], passed: bool, sentence: str):
    found = verdict(value, 0.9, baseline="none", **changes)
    assert (found.passed, found.baseline, found.sentence) == (passed, None, sentence)


def test_without_a_champion_its_gates_do_not_apply():
    found = judge(
        measured({"recall@10": 0.4}, None), [gate(), gate(baseline="none", threshold=0.5), gate(threshold=1.0)]
    )
    assert [v.passed for v in found] == [None, False, None]
    assert "no champion yet" in found[0].sentence
    assert refused(found)
    assert not refused((found[0], found[2]))


def test_a_metric_that_the_champion_lacks_is_not_compared(golden: Golden):
    (found,) = judge(measured({"auc": 0.7}, {"recall@10": 0.5}), [gate("auc")])
    assert found.passed is None
    golden(found.sentence)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("direction", ["higher", "lower"])
@pytest.mark.parametrize("baseline", ["none", "champion"])
def test_a_metric_that_is_not_finite_fails(value: float, direction: str, baseline: str):
    found = verdict(value, 0.5, direction=direction, baseline=baseline)
    assert found.passed is False
    assert found.value is None
    assert f"recall@10 is {value}" in found.sentence
    assert refused([found])


def test_nan_fails_after_a_trip_through_json():
    outcome = EvaluateOutcome(
        holdout_rows=1,
        corpus_items=1,
        challenger={"recall@10": math.nan},
        champion=None,
        champion_version=None,
    )
    there_and_back = EvaluateOutcome.model_validate_json(outcome.to_json())
    (found,) = judge(measured(there_and_back.challenger, None), [gate(baseline="none")])
    assert found.passed is False


def test_a_champion_without_a_number_fails():
    found = verdict(0.5, math.nan)
    assert (found.passed, found.baseline) == (False, None)
    assert "the champion's is nan" in found.sentence


def test_warnings_never_refuse():
    found = verdict(0.1, 0.9, severity="warning")
    assert found.passed is False
    assert not refused([found])
    assert refused([found, verdict(0.1, 0.9)])


def test_two_gates_on_one_metric_are_judged_separately():
    gates = [gate(threshold=-0.01), gate(threshold=-0.1), gate(baseline="none", threshold=0.9)]
    found = judge(measured({"recall@10": 0.45}, {"recall@10": 0.5}), gates)
    assert [v.passed for v in found] == [False, True, False]


def test_a_metric_that_was_not_measured_fails(golden: Golden):
    found = judge(measured({"recall@10": 0.4}, {"recall@10": 0.4, "auc": 0.7}), [gate("auc")])
    assert [v.passed for v in found] == [False]
    assert found[0].value is None
    golden(found[0].sentence)


HALF = 4000  # rows of unseen and of seen queries
Recalls = tuple[float, float]  # recall@10 on unseen and on seen queries


def ranks(recall: float) -> list[int]:
    return [1] * round(HALF * recall) + [11] * (HALF - round(HALF * recall))


def test_the_gates_of_base_yaml_hold_a_first_release_and_a_later_one():
    gates = load_config(None, ["model.pretrained=package:any"]).evaluate.gates

    def refusing(challenger: Recalls, **others: Recalls) -> dict[str, str]:
        recalls = {"challenger": challenger, "untrained": (0.3, 0.3), **others}
        rows = row_results({Role(name): [*ranks(unseen), *ranks(seen)] for name, (unseen, seen) in recalls.items()},
                           unseen=[True] * HALF + [False] * HALF)  # fmt: skip
        measured = Measured({role: rows.metrics(role) for role in rows.roles}, rows)
        return {v.against or "floor": v.where for v in judge(measured, gates) if v.refuses}

    good = (0.4, 0.4)
    assert refusing(good) == {}
    assert refusing((0.25, 0.25)) == {"untrained": "unseen queries"}, "and over all queries"
    assert refusing((0.001, 0.001)) == {"untrained": "unseen queries", "floor": ""}
    assert refusing((0.27, 0.6)) == {"untrained": "unseen queries"}, "it learnt its own queries by heart"
    assert refusing((0.2995, 0.4)) == {}, "a difference that chance may have made"
    assert refusing(good, champion=good, best=good) == {}
    assert refusing(good, champion=(0.404, 0.404), best=(0.43, 0.43)) == {"best": "seen queries"}, (
        "each drop was allowed"
    )
    assert refusing((0.38, 0.45), champion=good, best=good) == {"champion": "unseen queries"}


def test_great_expectations_is_not_imported_before_it_is_needed():
    heavy = "{'great_expectations', 'pandas', 'torch'}"
    program = f"import sys, tasks.quality.verdicts; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_without_gates_nothing_is_refused():
    assert judge(measured({"recall@10": 0.4}, None), []) == ()
    assert not refused(())
