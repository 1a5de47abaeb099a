"""The gain of a training by its scores, against histories whose true gain is known, and against closed forms."""

from __future__ import annotations

import pytest

from tasks.laboratory import worth as module
from tasks.laboratory.worth import gain_of_training, posterior
from tasks.planning.decisions import Finding, Worth
from tests.benchmarks.quality.decisions import REFUSED, findings

DRAWS = 100


def worth(release: int, points: float, error: float, spans: int = 1) -> Worth:
    """A score with a standard error of `error` points."""
    half = 1.959964 * error
    return Worth(release=release, span="2026-01", spans=spans, rows=10**9, points=points, low=points - half,
                 high=points + half)  # fmt: skip


@pytest.mark.parametrize(("rows", "scores", "refused"), [(227, 2, 0.0), (227, 6, REFUSED), (1400, 8, 0.0)])
def test_a_finding_is_seldom_wrong_whatever_the_noise(rows: int, scores: int, refused: float) -> None:
    worthless, two_points = (findings(rows, true, scores, refused, 0.0, DRAWS) for true in (0.0, 2.0))
    assert worthless[Finding.worth] <= 0.1 * DRAWS
    assert two_points[Finding.waits] <= 0.05 * DRAWS
    if rows == 1400:  # an answer that is never given would not be wrong either
        assert worthless[Finding.waits] > 0.2 * DRAWS
        assert two_points[Finding.worth] > 0.7 * DRAWS


def test_an_inexact_score_counts_less() -> None:
    """With trainings that gain alike, the mean is weighted by the inverse variances and the prior's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SPREAD", 1e-9)
        found = posterior([worth(1, 4.0, 1.0), worth(2, 0.0, 3.0)])
    precision = 1 / 1.0 + 1 / 9.0 + 1 / module.PRIOR**2
    assert found.mean == pytest.approx(4.0 / precision, abs=1e-5)
    assert found.quantile(0.5) == pytest.approx(found.mean, abs=1e-5)
    assert found.quantile(0.95) - found.mean == pytest.approx(1.644854 * precision**-0.5, abs=1e-5)


def test_scores_that_disagree_widen_the_bounds() -> None:
    alike, unlike = (
        posterior([worth(1, 2.0, 0.3), worth(2, 2.0, 0.3)]),
        posterior([worth(1, 0.5, 0.3), worth(2, 3.5, 0.3)]),
    )
    assert unlike.quantile(0.95) - unlike.quantile(0.05) > 1.5 * (alike.quantile(0.95) - alike.quantile(0.05))


def test_two_spans_of_one_training_are_half_its_points_each() -> None:
    assert posterior([worth(1, 6.0, 0.2, spans=2)]).mean == pytest.approx(3.0, abs=0.2)


def test_two_scores_of_one_training_are_one_training() -> None:
    once, twice = posterior([worth(1, 3.0, 1.0)]), posterior([worth(1, 3.0, 2**0.5), worth(1, 3.0, 2**0.5)])
    assert twice.mean == pytest.approx(once.mean)
    assert twice.quantile(0.95) == pytest.approx(once.quantile(0.95))


def test_a_score_without_a_differing_row_is_not_exact() -> None:
    nothing = Worth(release=1, span="2026-01", spans=1, rows=20, points=0.0, low=0.0, high=0.0)
    assert gain_of_training([nothing], 0, 2, 1, 0.5).finding is Finding.unknown


def test_without_scores_the_prior_stands() -> None:
    found = gain_of_training([], 0, 0, 1, 0.5)
    assert found.points == pytest.approx(0.0)
    assert found.high == pytest.approx(1.644854 * module.PRIOR, abs=1e-4)
