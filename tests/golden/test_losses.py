"""A short training whose losses are known, so that an accidental change of the arithmetic is found.

After a change on purpose, write the new losses with `pytest tests/golden --write-golden`.
"""

import json
from pathlib import Path

import pytest

from tasks.contracts.outcomes import TrainOutcome
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, make_workspace, tiny_config, train_model

GOLDEN = Path(__file__).with_name("cpu_fp32.json")
STEPS = 15


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> TrainOutcome:
    """Both heads, both interactions, two epochs, on one thread."""
    store, rows = make_workspace(tmp_path_factory.mktemp("golden"), rows=150)
    config = tiny_config(
        *FEATURES,
        CLASSIFIER,
        "heads.contrastive.positives_only=true",
        "train.batch_rows=18",
        "train.epochs=3",
        "seed=5",
    )
    return train_model(store, config, rows)


def test_the_losses_equal_the_golden_ones(outcome: TrainOutcome, write_golden: bool):
    found = [{"step": point.step, **point.metrics} for point in outcome.losses[:STEPS]]
    assert len(found) == STEPS
    if write_golden:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        pytest.skip(f"wrote {GOLDEN.name}: look at the difference before committing it")
    for ours, golden in zip(found, json.loads(GOLDEN.read_text()), strict=True):
        assert ours == pytest.approx(golden, rel=1e-4), f"step {ours['step']}"
