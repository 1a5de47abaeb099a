"""Gates on parts of the rows and against other models, judged from the answers to single rows."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from configs.schema.gates import GateConfig
from tasks.contracts.evaluation import GOLDEN, Role, Verdict, refused
from tasks.foundation.errors import ConfigError
from tasks.quality.common_items import CommonItems
from tasks.quality.comparisons import Measured
from tasks.quality.row_results import RowResults
from tasks.quality.verdicts import judge
from tests.support.measures.results import row_results
from tests.support.pages.golden import Golden

CHALLENGER, CHAMPION = Role.challenger, Role.champion
HIT, MISS = 1, 11


def gate(**changes: Any) -> GateConfig:
    values = {"metric": "recall@10", "direction": "higher", "threshold": -0.01, "baseline": "champion"}
    return GateConfig.model_validate({**values, "severity": "critical", **changes})


def verdicts(rows: RowResults, *gates: GateConfig, **measured: Any) -> tuple[Verdict, ...]:
    metrics = {role: rows.metrics(role) for role in rows.roles}
    return judge(Measured(metrics, rows, "among 50 items", **measured), gates)


def parts(count: int, hits: dict[str, tuple[int, int]]) -> tuple[dict[Role, list[int]], list[str]]:
    """So many rows of each part; of the first ones challenger and champion find as many as given."""
    ranks: dict[Role, list[int]] = {CHALLENGER: [], CHAMPION: []}
    for ours, theirs in hits.values():
        ranks[CHALLENGER] += [HIT] * ours + [MISS] * (count - ours)
        ranks[CHAMPION] += [HIT] * theirs + [MISS] * (count - theirs)
    return ranks, [part for part in hits for _ in range(count)]


def test_a_slice_is_judged_by_its_own_rows_against_the_champion_on_the_same(golden: Golden) -> None:
    ranks, locale = parts(10, {"de": (4, 8), "en": (9, 5)})
    whole, german = verdicts(row_results(ranks, locale=locale), gate(), gate(slice="locale=de"))
    assert (whole.answer, whole.value, whole.baseline, whole.where) == ("pass", 0.65, 0.65, "")
    assert (german.answer, german.value, german.baseline, german.where) == ("fail", 0.4, 0.8, "locale=de")
    golden(german.sentence, german.over)


def test_each_value_with_enough_rows_is_judged_and_one_without_rows_can_not_tell(golden: Golden) -> None:
    ranks, locale = parts(6, {"de": (3, 3), "en": (5, 5)})
    ranks = {role: [*values, HIT] for role, values in ranks.items()}
    rows = row_results(ranks, locale=[*locale, "fr"])
    found = verdicts(rows, gate(slice="locale"), gate(slice="locale=it"), min_slice_rows=5)
    assert [(v.where, v.answer) for v in found] == [
        ("locale=de", "pass"),
        ("locale=en", "pass"),
        ("locale=it", "undecided"),
    ]
    (none,) = verdicts(rows, gate(slice="locale"), min_slice_rows=50)
    assert none.answer is None
    golden(none.sentence)


def halves(unseen: tuple[int, int], seen: tuple[int, int], count: int = 200) -> RowResults:
    """So many rows of unseen and of seen queries; of the first ones challenger and champion find as many as given."""
    ranks, part = parts(count, {"unseen": unseen, "seen": seen})
    return row_results(ranks, unseen=[each == "unseen" for each in part])


def test_the_worse_of_unseen_and_seen_queries_decides(golden: Golden) -> None:
    rows = halves(unseen=(100, 140), seen=(198, 140))
    whole, *apart = verdicts(rows, gate(confidence=0.95), gate(queries="each", confidence=0.95))
    assert whole.answer == "pass", "over all queries the model is better"
    assert [(v.where, v.answer, v.rows) for v in apart] == [
        ("unseen queries", "fail", 200),
        ("seen queries", "pass", 200),
    ]
    assert refused(apart)
    golden(apart[0].sentence, whole.sentence)
    (alone,) = verdicts(rows, gate(queries="unseen", confidence=0.95))
    assert (alone.where, alone.answer) == ("unseen queries", "fail")


def test_queries_are_judged_within_a_slice_of_enough_rows() -> None:
    ranks, locale = parts(6, {"de": (3, 3), "en": (5, 5)})
    rows = row_results(ranks, locale=locale, unseen=[at % 3 == 0 for at in range(12)])
    found = verdicts(rows, gate(slice="locale", queries="each"), min_slice_rows=5)
    assert [(v.where, v.rows) for v in found] == [
        ("locale=de, unseen queries", 2),
        ("locale=de, seen queries", 4),
        ("locale=en, unseen queries", 2),
        ("locale=en, seen queries", 4),
    ]


def test_a_part_of_the_queries_without_rows_is_undecided_unless_the_rule_makes_none(golden: Golden) -> None:
    ranks, _ = parts(10, {"all": (8, 8)})
    rows = row_results(ranks, unseen=[True] * 10)
    found = verdicts(rows, gate(queries="each", undecided="refuse"))
    assert [(v.where, v.answer) for v in found] == [("unseen queries", "pass"), ("seen queries", "undecided")]
    golden(found[1].sentence)
    (alone,) = verdicts(rows, gate(queries="each", undecided="refuse"), unseen_alone=True)
    assert (alone.where, alone.answer) == ("unseen queries", "pass")


def test_a_column_that_the_rows_lack_is_an_error_that_names_those_they_have() -> None:
    with pytest.raises(ConfigError, match=r"'country' .*locale"):
        verdicts(row_results({CHALLENGER: [1], CHAMPION: [1]}, locale=["de"]), gate(slice="country"))


def test_a_gate_by_width_takes_the_ranks_by_the_first_numbers(golden: Golden) -> None:
    ranks, locale = parts(10, {"de": (8, 8), "en": (8, 8)})
    narrow, _ = parts(10, {"de": (2, 6), "en": (7, 6)})
    rows = dataclasses.replace(
        row_results(ranks, locale=locale), narrow_ranks={64: {role: np.array(each) for role, each in narrow.items()}}
    )
    whole, all_of_it, german = verdicts(rows, gate(), gate(width=64), gate(width=64, slice="locale=de", confidence=0.9))
    assert (whole.value, whole.answer, whole.where) == (0.8, "pass", "")
    assert (all_of_it.value, all_of_it.baseline, all_of_it.where) == (0.45, 0.6, "the first 64 numbers")
    assert (german.value, german.answer) == (0.2, "fail")
    golden(german.where, german.sentence)


def test_a_gate_by_a_width_that_was_not_measured_does_not_apply(golden: Golden) -> None:
    ranks, _ = parts(10, {"": (8, 8)})
    rows = dataclasses.replace(row_results(ranks), narrow_ranks={64: {CHALLENGER: np.array(ranks[CHALLENGER])}})
    other, no_champion = verdicts(rows, gate(width=32), gate(width=64))
    assert (other.answer, other.value) == (None, None)
    assert no_champion.answer is None
    golden(other.sentence, no_champion.sentence)


def test_spans_are_judged_by_name_and_forgetting_shows() -> None:
    ranks, span = parts(10, {"2026-01": (2, 9), "2026-02": (9, 2)})
    rows = row_results(ranks, span=span)
    each = verdicts(rows, gate(span="each"), newest="2026-02")
    assert [(v.where, v.answer) for v in each] == [("span 2026-01", "fail"), ("span 2026-02", "pass")]
    newest, old = verdicts(rows, gate(span="newest"), gate(span="2026-01"), newest="2026-02")
    assert (newest.where, newest.value) == ("span 2026-02", 0.9)
    assert (old.where, old.value) == ("span 2026-01", 0.2)


def test_the_golden_set_is_judged_alone_and_counts_nowhere_else() -> None:
    ranks, span = parts(4, {GOLDEN: (0, 4), "2026-01": (4, 4)})
    whole, alone = verdicts(row_results(ranks, span=span), gate(), gate(rows="golden"))
    assert (whole.answer, whole.rows, whole.value) == ("pass", 4, 1.0)
    assert (alone.answer, alone.rows, alone.value, alone.where) == ("fail", 4, 0.0, "the golden set")


@pytest.mark.parametrize(("threshold", "answer"), [(-0.25, "pass"), (-0.24, "fail")])
def test_a_relative_threshold_is_a_share_of_the_baseline(threshold: float, answer: str) -> None:
    ranks, _ = parts(10, {"": (6, 8)})
    (found,) = verdicts(row_results(ranks), gate(threshold=threshold, relative=True))
    assert (found.answer, found.threshold) == (answer, pytest.approx(threshold * 0.8))
    assert f"({-threshold:g} of it)" in found.sentence


def test_other_baselines_and_what_is_not_there(golden: Golden) -> None:
    ranks, _ = parts(10, {"": (6, 8)})
    untrained = {**ranks, Role.untrained: [MISS] * 10}
    above, first = verdicts(row_results(untrained), gate(baseline="untrained", threshold=0.0), gate(baseline="first"))
    assert (above.answer, above.against, above.baseline) == ("pass", "untrained", 0.0)
    assert (first.answer, first.value) == (None, 0.6)
    golden(above.sentence, first.sentence)
    (alone,) = verdicts(row_results({CHALLENGER: [HIT]}), gate(baseline="best"))
    golden(alone.sentence)


def test_a_gate_on_the_champion_judges_it_on_a_span_that_it_has_not_seen(golden: Golden) -> None:
    forward = gate(of="champion", baseline="previous", span="newest", threshold=0.0, confidence=0.9)
    ranks, span = parts(40, {"2026-01": (9, 40), "2026-02": (9, 30)})
    before = {**ranks, Role.previous: [HIT] * 50 + [MISS] * 30}
    rows = row_results(before, span=span)
    (found,) = verdicts(rows, forward, newest="2026-02")
    assert (found.of, found.against, found.answer) == ("champion", "previous", "pass")
    assert (found.value, found.baseline, found.rows) == (0.75, 0.25, 40)
    golden(found.sentence)
    for seen in (CHAMPION, Role.previous):
        (known,) = verdicts(rows, forward, newest="2026-02", seen_by=frozenset({seen}))
        assert known.answer is None
        golden(known.sentence)
    # Of a large catalogue challenger and previous meet on all items; champion and previous on the corpus alone.
    shared = {Role.previous: {CHALLENGER: np.full(80, HIT), Role.previous: np.full(80, HIT)}}
    large = dataclasses.replace(rows, shared_ranks=shared)
    (same,) = verdicts(
        large, forward, newest="2026-02", whole="among all items", shared={Role.previous: CommonItems(70, 80)}
    )
    assert (same.value, same.baseline) == (0.75, 0.25)
    (whole,) = verdicts(rows, gate(of="champion", baseline="none"), newest="2026-02", seen_by=frozenset({CHAMPION}))
    assert (whole.answer, whole.value) == ("pass", 0.875), "over all spans it has seen most of the rows"
    (only,) = verdicts(row_results(ranks, span=span), forward, newest="2026-02")
    golden(same.over, only.sentence)
    (first,) = verdicts(row_results({CHALLENGER: ranks[CHALLENGER]}, span=span), forward, newest="2026-02")
    assert (first.answer, "no champion" in first.sentence) == (None, True)


def test_too_few_rows_are_undecided_and_the_configuration_says_what_that_means() -> None:
    ranks, _ = parts(10, {"": (0, 10)})
    rows = row_results(ranks)
    accepted, asking, warned, stopped = verdicts(
        rows,
        gate(min_rows=50),
        gate(min_rows=50, undecided="ask"),
        gate(min_rows=50, undecided="refuse", severity="warning"),
        gate(min_rows=50, undecided="refuse"),
    )
    assert [v.answer for v in (accepted, asking, warned, stopped)] == ["undecided"] * 4
    assert (accepted.rows, accepted.rows_needed) == (10, 50)
    assert not refused([accepted, asking, warned])
    assert [v.asks for v in (accepted, asking, warned, stopped)] == [False, True, False, False]
    assert refused([stopped])


# --- the items that are searched --------------------------------------------------------------------------------------


def in_whole(baseline: Role, items: int, of: int, **changes: Any) -> Verdict:
    """A gate on a challenger that loses nothing among the common items, and half of the rows in the corpus."""
    ranks, _ = parts(10, {"": (5, 10)})
    ranks = ranks if baseline is CHAMPION else {**ranks, baseline: ranks[CHAMPION]}
    equal = {baseline: {role: np.full(10, HIT) for role in (CHALLENGER, baseline)}}
    competitors = {baseline: np.full(10, max(0, items - 1))}
    rows = dataclasses.replace(row_results(ranks), shared_ranks=equal, shared_competitors=competitors)
    common = {baseline: CommonItems(items, of)}
    (found,) = verdicts(rows, gate(baseline=baseline.value, **changes), shared=common, min_shared=0.5)
    return found


def test_the_verdict_says_which_share_of_the_catalogue_both_hold(golden: Golden) -> None:
    found = in_whole(CHAMPION, 998_210, 1_000_000)
    assert (found.answer, found.shared) == ("pass", 0.99821)
    golden(found.over)
    assert "99.9 %" in in_whole(CHAMPION, 999_999, 1_000_000).over, "not all"


@pytest.mark.parametrize("undecided", ["accept", "refuse", "ask"])
@pytest.mark.parametrize("items", [0, 49])
def test_too_few_common_items_are_undecided_and_refuse_a_critical_gate(items: int, undecided: str) -> None:
    found = in_whole(CHAMPION, items, 100, undecided=undecided, confidence=0.95)
    assert (found.answer, found.refuses, found.value, found.shared) == ("undecided", True, None, items / 100)
    assert not found.asks, "no person can compare them either"
    for part in (f"{items} of the catalogue's 100 items", f"{items} %", "evaluate.min_shared is 50 %", "--override"):
        assert part in found.sentence
    assert not in_whole(CHAMPION, items, 100, severity="warning").refuses
    assert in_whole(CHAMPION, 50, 100).answer == "pass"


@pytest.mark.parametrize("baseline", [Role.first, Role.best])
def test_an_old_release_that_lacks_most_items_is_compared_on_the_corpus(baseline: Role) -> None:
    """Its release is never brought up to date, so a refusal would stop a lineage for ever."""
    found = in_whole(baseline, 49, 100)
    assert (found.answer, found.value, found.baseline, found.shared) == ("fail", 0.5, 1.0, None)
    assert "among 50 items" in found.over
    assert in_whole(baseline, 50, 100).answer == "pass"


@pytest.mark.parametrize("baseline", ["champion", "none"])
@pytest.mark.parametrize("metric", ["recall@10", "mrr@10", "loss"])
def test_rows_without_competitors_refuse_a_critical_gate_and_never_pass_as_perfect(baseline: str, metric: str) -> None:
    few = {"recall@10": 9, "mrr@10": 9, "loss": 0}[metric]
    lower = {"direction": "lower", "threshold": 9.0} if metric == "loss" else {"threshold": 0.0}
    rows = row_results({CHALLENGER: [1] * 60, CHAMPION: [1] * 60}, competitors=[few] * 60, locale=["de"] * 60)
    gates = [gate(metric=metric, baseline=baseline, **lower, **more) for more in ({}, {"slice": "locale"})]
    for found in verdicts(rows, *gates, gate(metric=metric, baseline=baseline, **lower, slice="locale=de")):
        assert (found.answer, found.refuses, found.value) == ("undecided", True, None)
        assert "would be perfect" in found.sentence
    assert verdicts(rows, gate(metric="recall@1", threshold=0.0))[0].answer == ("pass" if few else "undecided")


def test_rows_without_competitors_are_left_out_of_the_others() -> None:
    ranks, _ = parts(10, {"": (5, 10)})
    (found,) = verdicts(row_results(ranks, competitors=[10] * 5 + [9] * 5), gate())
    assert (found.answer, found.rows, found.value) == ("pass", 5, 1.0)


def test_a_search_of_a_release_without_competitors_refuses() -> None:
    floor, duel = gate(baseline="none", threshold=0.01), gate()
    for metrics in ({CHALLENGER: {}, CHAMPION: {"recall@10": 1.0}}, {CHALLENGER: {"recall@10": 1.0}, CHAMPION: {}}):
        found = judge(Measured(metrics, many=30), [duel])[0]
        assert (found.answer, found.refuses) == ("undecided", True)
    assert judge(Measured({CHALLENGER: {}}, many=30), [floor])[0].refuses


def test_an_undecided_gate_shows_its_interval_and_says_how_many_rows_it_would_take(golden: Golden) -> None:
    random = np.random.default_rng(5)
    ranks = {role: np.where(random.random(300) < 0.5, HIT, MISS) for role in (CHALLENGER, CHAMPION)}
    (found,) = verdicts(row_results(ranks), gate(confidence=0.95))
    assert found.answer == "undecided"
    assert found.low is not None
    assert found.high is not None
    assert found.difference is not None
    assert found.standard_error is not None
    assert found.low < found.difference < found.high
    spread = np.std([(one <= 10) * 1.0 - (two <= 10) for one, two in zip(*ranks.values(), strict=True)])
    assert found.standard_error == pytest.approx(spread / 300**0.5, rel=0.05)
    assert found.rows_needed is not None
    assert found.rows_needed > 300
    assert (found.commonest_item, found.commonest_group) == (1 / 300, 1 / 300)
    golden(found.sentence)
    assert f"{found.rows_needed:,} would" in found.sentence


def test_of_a_metric_whose_low_values_are_better_the_other_end_decides() -> None:
    random = np.random.default_rng(6)
    ranks = {CHALLENGER: random.integers(2, 9, 400), CHAMPION: random.integers(1, 5, 400)}
    loss = {"metric": "loss", "direction": "lower", "confidence": 0.95}
    worse, better = verdicts(row_results(ranks), gate(**loss, threshold=0.1), gate(**loss, threshold=2.0))
    assert (worse.answer, better.answer) == ("fail", "pass")
    assert worse.low is not None
    assert worse.low > 0.1


def test_many_slices_of_an_equal_model_fail_no_more_often_than_one() -> None:
    """Of 20 slices of an equal model about one is beyond a bound of 95 % by chance: uncorrected, it would fail."""
    failed = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        ranks = {role: np.where(random.random(2000) < 0.5, HIT, MISS) for role in (CHALLENGER, CHAMPION)}
        rows = row_results(ranks, shop=[f"shop {row % 20:02d}" for row in range(2000)])
        found = verdicts(rows, gate(threshold=0.0, slice="shop", confidence=0.95))
        assert len(found) == 20
        failed += any(verdict.answer == "fail" for verdict in found)
    assert failed <= 9, "of 60, 3 are expected at 5 %; without a correction it is about 38"


def test_a_slice_that_is_far_worse_fails_among_many() -> None:
    ranks, shop = parts(100, {f"shop {number}": (50, 50) for number in range(19)} | {"bad": (20, 50)})
    found = verdicts(row_results(ranks, shop=shop), gate(slice="shop", confidence=0.95))
    assert [verdict.where for verdict in found if verdict.answer == "fail"] == ["shop=bad"]


def test_an_auc_of_one_class_is_undecided_in_a_slice_and_fails_in_the_whole() -> None:
    answers: dict[str, Any] = {"label_class": [1, 1, 0, 1], "probabilities": {CHALLENGER: [0.9, 0.8, 0.1, 0.7]}}
    rows = row_results({CHALLENGER: [1] * 4}, locale=["de", "de", "en", "en"], **answers)
    floor = {"metric": "auc", "baseline": "none", "threshold": 0.5}
    german, english = verdicts(rows, gate(**floor, slice="locale"))
    assert (german.answer, english.answer) == ("undecided", "pass")
    assert "one class" in german.sentence


def test_a_correlation_with_equal_labels_is_undecided_in_a_slice() -> None:
    """Any model's is undefined there: a locale where all rows have five stars must not refuse a good one."""
    rows = dataclasses.replace(
        row_results({CHALLENGER: [1] * 5, CHAMPION: [1] * 5}, locale=["de", "de", "en", "en", "en"]),
        labels={"regression": np.array([5.0, 5.0, 1.0, 2.0, 3.0])},
        says={"regression": {role: np.array([4.0, 5.0, 1.0, 2.5, 3.0]) for role in (CHALLENGER, CHAMPION)}},
    )
    german, english = verdicts(rows, gate(metric="pearson", slice="locale"))
    assert (german.answer, english.answer) == ("undecided", "pass")
    assert "one label" in german.sentence


def test_compatibility_with_a_champion_does_not_apply_before_there_is_one() -> None:
    fits = gate(metric="same_item_cosine", baseline="none", threshold=0.9)
    first = judge(Measured({CHALLENGER: {"recall@10": 0.5}}), [fits])
    later = judge(Measured({CHALLENGER: {"same_item_cosine": 0.8}, CHAMPION: {"recall@10": 0.5}}), [fits])
    assert [first[0].answer, later[0].answer] == [None, "fail"]
