"""Operations, all-reduce and scaling are the published formulas, so that shares of a peak are comparable."""

import pytest

from tasks.costs.published import machine_of, published
from tasks.costs.step_time import efficiency, exchange, operations

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
