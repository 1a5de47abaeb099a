"""Wrong rows in a part of a span, by the champion's answers: which are refused, and that honest ones are not."""

from collections.abc import Sequence

import numpy as np
import pytest

from configs.schema.stages import Bounds
from tasks.contracts.evaluation import Role, Verdict
from tasks.quality.fall_parts import judge_parts
from tasks.quality.row_results import RowResults
from tests.support.measures.results import row_results

BEFORE, NEW = "2026-01", "2026-02"
BOUNDS = Bounds(warn=0.1, stop=0.3), Bounds(warn=0.3, stop=0.6)
KINDS = 9
FOUND, LOST = 1, 99  # ranks
FEWEST = 20


def judged(rows: RowResults, columns: Sequence[str] = ("category",)) -> tuple[Verdict, ...]:
    return judge_parts(rows, [NEW], columns, BOUNDS, FEWEST)[NEW]


def shop(
    random: np.random.Generator,
    *,
    rows: int = 300,
    wrong: Sequence[int] = (),
    skill: float = 3.0,
    inverted: bool = False,
    shuffled: bool = False,
    skill_before: float = 3.0,
) -> RowResults:
    """Five spans of nine categories, three quarters of class 1, which alone are pairs.

    Each row has a strength, the higher the more its item suits the query; rank and probability follow from it.
    """
    spans = np.repeat([BEFORE, NEW], [4 * rows, rows])
    truth = (random.random(5 * rows) < 0.75).astype(int)
    kinds = random.integers(KINDS, size=5 * rows)
    new = spans == NEW
    strength = truth * np.where(new, skill, skill_before) + random.normal(0, 1, 5 * rows)
    labels = truth.copy()
    labels[new & inverted & np.isin(kinds, wrong)] ^= 1
    if shuffled:
        labels[new] = random.permutation(labels[new])
    found = row_results(
        {Role.champion: np.where(strength > 1, FOUND, LOST)},
        span=spans.tolist(),
        label_class=labels.tolist(),
        probabilities={Role.champion: (1 / (1 + np.exp(-strength))).tolist()},
        held=[True] * (5 * rows),
        category=[f"kind {each}" for each in kinds],
    )
    found.pair[:] = labels == 1
    return found


def test_labels_inverted_in_two_of_nine_categories_are_refused_there_alone() -> None:
    found = judged(shop(np.random.default_rng(3), wrong=(2, 5), inverted=True))
    assert {each.where.split(", ")[1] for each in found if each.refuses} == {"category=kind 2", "category=kind 5"}
    said = next(each.sentence for each in found if each.refuses)
    for way_out in ("--replace", "millrace gate --run KEY --override", "evaluate.label_loss"):
        assert way_out in said


def test_queries_of_other_rows_in_one_category_are_refused_there() -> None:
    rows = shop(np.random.default_rng(2))
    rows.ranks[Role.champion][(rows.span == NEW) & (rows.columns["category"] == "kind 4")] = LOST
    refused = [(each.metric, each.where) for each in judged(rows) if each.refuses]
    assert [(metric, where.split(", ")[1]) for metric, where in refused] == [("recall@10", "category=kind 4")]


def test_labels_of_other_rows_are_refused_although_recall_hardly_falls() -> None:
    found = judged(shop(np.random.default_rng(1), shuffled=True), columns=())
    assert [(each.metric, each.where, each.refuses) for each in found] == [("auc", f"the champion on {NEW}", True)]


def test_honest_spans_are_refused_in_fewer_than_one_of_twenty() -> None:
    """Also if the champion is a little worse on the new span, as it is on rows that it was not trained on."""
    honest = [judged(shop(np.random.default_rng(seed), skill=2.8)) for seed in range(100)]
    assert sum(any(each.refuses for each in found) for found in honest) < 5


@pytest.mark.parametrize("rows", [20, 60])
def test_small_spans_are_not_refused_for_their_size(rows: int) -> None:
    honest = [judged(shop(np.random.default_rng(seed), rows=rows, skill=2.8)) for seed in range(100)]
    assert sum(any(each.refuses for each in found) for found in honest) < 5


def test_a_champion_with_little_skill_on_few_rows_accuses_nobody() -> None:
    """Its AUC of 0.66 on eighty rows before may be chance, and so may that of 0.5 on the new ones."""
    weak = [judged(shop(np.random.default_rng(seed), rows=20, skill=0.0, skill_before=0.6), ()) for seed in range(100)]
    assert sum(any(each.refuses for each in found if each.metric == "auc") for found in weak) < 2


def test_a_champion_that_never_told_the_classes_apart_accuses_nobody() -> None:
    rows = shop(np.random.default_rng(1), shuffled=True, skill_before=0.0)
    assert [each for each in judged(rows, columns=()) if each.metric == "auc"] == []


def test_without_a_champion_there_is_no_verdict() -> None:
    rows = row_results({Role.challenger: [LOST] * 200}, span=[BEFORE] * 100 + [NEW] * 100)
    assert judge_parts(rows, [NEW], (), BOUNDS, FEWEST) == {}


@pytest.mark.parametrize(
    ("by_champion", "by_challenger", "refused"),
    [
        (0.0, 0.0, True),  # placeholders, or the texts of other items
        (0.0, 0.3, False),  # a new language, which the challenger has learnt
        (0.5, 0.5, False),
    ],
)
def test_new_items_that_no_model_finds_are_refused(by_champion: float, by_challenger: float, refused: bool) -> None:
    held = np.arange(200) < 100
    ranks = {
        role: np.where(held | (np.arange(200) % 100 < share * 100), FOUND, LOST)
        for role, share in ((Role.champion, by_champion), (Role.challenger, by_challenger))
    }
    found = judged(row_results(ranks, span=[NEW] * 200, held=held), columns=())
    assert [each.where for each in found if each.refuses] == [f"new items of {NEW}"] * refused


def test_few_new_items_are_not_judged() -> None:
    held = np.arange(200) >= 29
    assert judged(row_results({Role.champion: np.where(held, FOUND, LOST)}, span=[NEW] * 200, held=held), ()) == ()
