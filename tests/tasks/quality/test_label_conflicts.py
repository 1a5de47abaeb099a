import numpy as np
import pytest

from tasks.contracts.evaluation import Role
from tasks.quality.label_conflicts import contradicted
from tasks.quality.row_results import RowResults
from tests.support.measures.row_results import row_results

ROWS = 100  # of a span


def answered(skill: float, skill_before: float, role: Role = Role.champion) -> RowResults:
    """Two spans. The higher the skill, the more a probability is that of the row's class; below 0, of the other one."""
    random, classes = np.random.default_rng(0), np.arange(2 * ROWS) % 2
    skills = np.repeat([skill_before, skill], ROWS)
    probabilities = 0.5 + (classes - 0.5) * skills + random.normal(0, 0.2, 2 * ROWS)
    spans = ["2026-01"] * ROWS + ["2026-02"] * ROWS
    return row_results({role: [1] * 2 * ROWS}, span=spans, label_class=classes.tolist(),
                       probabilities={role: probabilities.tolist()})  # fmt: skip


def test_labels_turned_round_are_named_with_both_spans_numbers() -> None:
    said = contradicted(answered(-0.5, 0.5), "2026-02")
    assert "labels of span 2026-02 contradict those before" in said
    assert "on its 100 holdout rows with a class, where guessing keeps above 0.40" in said


@pytest.mark.parametrize(
    ("skill", "skill_before", "role"),
    [
        (0.5, 0.5, Role.champion),
        (0.0, 0.5, Role.champion),  # stale: it can't tell, which is not the contrary
        (-0.5, 0.0, Role.champion),  # it never could tell
        (-0.5, 0.5, Role.challenger),  # trained on the newest labels itself
    ],
)
def test_a_champion_that_is_right_unsure_or_absent_contradicts_nothing(skill, skill_before, role: Role) -> None:
    assert contradicted(answered(skill, skill_before, role), "2026-02") == ""


def test_the_first_span_has_none_before_it() -> None:
    rows = answered(-0.5, 0.5)
    rows.span[:] = "2026-02"
    assert contradicted(rows, "2026-02") == ""
