"""Operations, all-reduce and scaling are the published formulas, so that shares of a peak are comparable."""

import datetime as dt

import pytest

from configs.instances import machine_of
from tasks.laboratory.published import Published, published
from tasks.laboratory.step_time import Point, Wanted, efficiency, exchange, predicted, published_points, speed_of
from tasks.preflight.encoder_size import operations
from tests.docs.published import FITTED, REASONS, rows

LARGE = published().models["bert-large"]


@pytest.mark.parametrize("sequence", [128, 512])
def test_operations_are_the_formula_of_megatron(sequence: int) -> None:
    """72 L h^2 s (1 + s / 6h) of a sequence, forward and backward; a third of it forward."""
    whole = 72 * 24 * 1024**2 * sequence * (1 + sequence / (6 * 1024))
    assert operations(LARGE, sequence, sequence, training=True) == pytest.approx(whole)
    assert operations(LARGE, 10 * sequence, sequence, training=False) == pytest.approx(10 * whole / 3)


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("SDK 2.15, AdamW, 1 node", 27.49),
        ("SDK 2.15, LAMB, 1 node", 29.07),
        ("SDK 2.15, LAMB, 16 nodes", 25.83),
        ("SDK 2.15, phase 2, 16 nodes", 15.5),
    ],
)
def test_the_share_of_the_peak_is_what_aws_publishes_for_the_same_row(name: str, percent: float) -> None:
    """aws-neuron-sdk trn1_trn1n_nlp_data.csv, column of the MFU."""
    row = next(each for each in published().rows if each.name == name)
    machine = machine_of(row.instance)
    assert machine is not None
    done = row.sequences_per_second * operations(LARGE, row.length, row.length, training=True)
    assert 100 * done / row.nodes / machine.peak("bf16") == pytest.approx(percent, abs=0.1)


def test_a_ring_sends_twice_the_gradients_less_one_part() -> None:
    machine = machine_of("trn1.32xlarge")
    assert machine is not None
    gradients = 4 * LARGE.parameters
    one, two = (exchange(gradients, 0, machine, nodes) for nodes in (1, 2))
    assert one is not None
    assert two is not None
    assert one.between_seconds == 0
    # Two nodes: 2 * (2 - 1) / 2 = 1 times 1.34 GB, at 0.47 of 100 GB/s.
    assert two.between_seconds == pytest.approx(335e6 * 4 / 47e9)
    assert two.inside_seconds == one.inside_seconds
    alone = machine_of("trn1.2xlarge")
    assert alone is not None
    assert exchange(gradients, 0, alone, 2) is None, "it has no EFA"
    with_vectors = exchange(gradients // 2, gradients // 2, machine, 2)
    assert with_vectors is not None
    assert with_vectors.seconds == pytest.approx(two.seconds), "a gather and a scatter send what an all-reduce sends"


def test_scaling_meets_the_published_points() -> None:
    assert efficiency(1, batch_grows=True) == efficiency(1, batch_grows=False) == 1.0
    assert efficiency(16, batch_grows=True) == pytest.approx(0.93)
    assert efficiency(16, batch_grows=False) == pytest.approx(0.394)
    assert efficiency(4, batch_grows=False) > efficiency(8, batch_grows=False)


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
