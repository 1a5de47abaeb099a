import numpy as np
import pytest

from configs.schema.stages import Bounds
from tasks.contracts.evaluation import GOLDEN, Role
from tasks.quality.fall_parts import judge_falls
from tasks.quality.row_results import RowResults
from tests.support.measures.results import row_results
from tests.support.pages.golden import Golden

BEFORE, NEW = "2026-01", "2026-02"
BOUNDS = Bounds(warn=0.1, stop=0.3)
FOUND, LOST = 1, 99  # ranks


def answered(found: float, found_before: float, rows: int = 200, held: float = 1.0, role=Role.champion) -> RowResults:
    """As many rows before; the champion finds such shares of the items that its release holds, and no other item."""
    holds = np.arange(rows) < held * rows
    ranks = [np.where(np.arange(rows) < share * rows, FOUND, LOST) for share in (found_before, found)]
    ranks[1] = np.where(holds, np.where(np.arange(rows) < found * held * rows, FOUND, LOST), LOST)
    spans = [BEFORE] * rows + [NEW] * rows
    return row_results({role: np.concatenate(ranks)}, span=spans, held=np.concatenate([np.ones(rows, bool), holds]))


@pytest.mark.parametrize(
    ("rows", "answer", "severity"),
    [
        (answered(0.05, 0.9), "fail", "critical"),  # ids joined wrongly
        (answered(0.7, 0.9), "fail", "warning"),
        (answered(0.88, 0.9), "pass", "warning"),
        (
            answered(0.9, 0.9, held=0.6),
            "pass",
            "warning",
        ),  # 40 % of the rows are about new items, none of which is found
        (
            answered(0.6, 0.9, rows=50),
            "fail",
            "warning",
        ),  # few rows: a loss of a third may be chance, one of 10 % is not
        (answered(0.82, 0.9, rows=50), "pass", "warning"),
    ],
)
def test_the_champions_own_loss_on_the_new_rows_is_judged(rows: RowResults, answer: str, severity: str) -> None:
    verdict = judge_falls(rows, [NEW], BOUNDS)[NEW]
    assert (verdict.answer, verdict.severity, verdict.refuses) == (answer, severity, severity == "critical")


def test_the_sentence_has_the_numbers_the_span_and_the_ways_out(golden: Golden) -> None:
    said = judge_falls(answered(0.05, 0.9), [NEW], BOUNDS)[NEW].sentence
    golden(said)
    for way_out in (
        "ingest the span again with --replace",
        "millrace gate --run KEY --override",
        "evaluate.champion_loss",
    ):
        assert way_out in said


@pytest.mark.parametrize(
    "rows",
    [
        answered(0.0, 0.9, role=Role.challenger),  # no champion
        answered(0.0, 0.9, rows=49),
        answered(0.0, 0.9, held=0.2),  # 40 rows about items that the release holds
    ],
)
def test_without_a_champion_or_enough_rows_there_is_no_verdict(rows: RowResults) -> None:
    assert judge_falls(rows, [NEW], BOUNDS) == {}


def test_the_golden_set_and_the_rows_that_are_no_pairs_do_not_count() -> None:
    rows = answered(0.05, 0.9)
    rows.span[200:] = GOLDEN
    assert judge_falls(rows, [NEW], BOUNDS) == {}
    rows = answered(0.5, 0.9)
    rows.pair[300:] = False  # those that are not found
    assert judge_falls(rows, [NEW], BOUNDS)[NEW].answer == "pass"


def test_each_span_that_the_champion_has_not_seen_is_judged_against_those_it_has() -> None:
    """A rejected span is trained again with the next one: it must not count as one before."""
    rows = answered(0.05, 0.9)
    later = answered(0.9, 0.9)
    both = row_results(
        {Role.champion: np.concatenate([rows.ranks[Role.champion], later.ranks[Role.champion][200:]])},
        span=[*rows.span, *["2026-03"] * 200],
        held=[True] * 600,
    )
    found = judge_falls(both, [NEW, "2026-03"], BOUNDS)
    assert {span: verdict.refuses for span, verdict in found.items()} == {NEW: True, "2026-03": False}


def test_a_bound_that_is_null_never_refuses() -> None:
    found = judge_falls(answered(0.05, 0.9), [NEW], Bounds(warn=0.1, stop=None))[NEW]
    assert (found.answer, found.refuses) == ("fail", False)
    assert judge_falls(answered(0.05, 0.9), [NEW], Bounds(warn=None, stop=None))[NEW].answer == "pass"
