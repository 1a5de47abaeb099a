"""Speeds are taken from the nearest measurement: own before published, and published rows predict each other."""

import datetime as dt

import pytest

from tasks.costs.published import Published, machine_of, published
from tasks.costs.utilisation import Point, Wanted, predicted, published_points, speed_of
from tests.docs.published import FITTED, REASONS, rows

BERT = Wanted("train", "trn1.32xlarge", "bf16", 128, 1024, 24)


def own(day: int, speed: float, length: int = 128, instance: str = "trn1.32xlarge") -> Point:
    at = dt.datetime(2026, 1, day, tzinfo=dt.UTC)
    return Point("train", instance, "bf16", length, 1024, 24, speed, at, f"run {day}", own=True)


def test_own_attempts_come_before_published_rows_and_the_newest_five_count() -> None:
    found = speed_of(BERT, [*published_points(), *(own(day, 1e12 * day) for day in range(1, 9))])
    assert found is not None
    assert (found.operations_per_second, found.basis) == (6e12, "fitted")


def test_the_nearest_length_counts() -> None:
    found = speed_of(BERT, [own(1, 1e12, length=512), own(2, 2e12)])
    assert found is not None
    assert found.operations_per_second == 2e12


def test_a_share_of_the_peak_carries_to_another_size_of_the_chip_and_says_so() -> None:
    small, large = machine_of("trn1.2xlarge"), machine_of("trn1.32xlarge")
    assert small is not None
    assert large is not None
    found = speed_of(BERT._replace(instance="trn1.2xlarge"), published_points())
    whole = speed_of(BERT, published_points())
    assert found is not None
    assert whole is not None
    assert found.operations_per_second == pytest.approx(whole.operations_per_second / 16)
    assert found.basis == "published"
    assert "machine trn1.32xlarge for trn1.2xlarge" in found.source


def test_a_narrow_encoder_is_not_said_to_be_published() -> None:
    found = speed_of(BERT._replace(hidden=96, layers=2), published_points())
    assert found is not None
    assert found.basis == "assumed"


def test_an_unknown_machine_has_no_speed_until_it_was_measured() -> None:
    here = BERT._replace(instance="local worker")
    assert speed_of(here, published_points()) is None
    found = speed_of(here, [own(1, 5e9, instance="local worker"), *published_points()])
    assert found is not None
    assert (found.operations_per_second, found.mfu) == (5e9, None)


def test_three_fitted_rows_predict_the_others_within_15_percent_or_the_reason_is_named() -> None:
    known: Published = published()
    assert len(FITTED) <= 3
    far = {each.row.name for each in rows() if each.row.name not in FITTED and abs(each.error) >= 0.15}
    assert far == set(REASONS), "give each row with a larger error its reason, and no other"
    assert set(FITTED) <= {row.name for row in known.rows}


def test_each_published_row_is_predicted_from_the_others() -> None:
    """The plan uses the nearest row: a wrong order of its criteria shows as an error of one of these rows."""
    everything = published().rows
    for row in everything:
        found = predicted(row, published_points(each for each in everything if each is not row))
        assert found is not None
        if row.name not in ("deck 2022, phase 1, 1 node", "deck 2022, phase 1, 16 nodes", "bert-large on inf2"):
            assert found == pytest.approx(row.sequences_per_second, rel=0.15), row.name
