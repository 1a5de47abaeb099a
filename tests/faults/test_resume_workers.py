"""Training killed with some workers goes on with another number of them: the same batches, sums in another order."""

import shutil
from pathlib import Path

import pytest
import torch

from infra.store.directory import DirectoryStore
from tests.faults.test_resume import COMMITTED
from tests.support.processes.ends import CONFIG, LAST_STEP, job_of, train_as_rank
from tests.support.processes.kills import Kill, train_rank_and_die
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import make_workspace, tensors_of, tiny_config, train_model

pytestmark = pytest.mark.proof

LOSS_TOLERANCE = 1e-5  # relative, of float32 sums over workers in another order
WEIGHT_TOLERANCE, LEAST_WEIGHT_TOLERANCE = 1e-4, 1e-5  # relative; absolute, of those near zero


def test_a_run_killed_with_two_workers_goes_on_with_one_or_four(tmp_path: Path):
    store, rows = make_workspace(tmp_path / "unbroken")
    unbroken = train_model(store, tiny_config(*CONFIG), rows)
    weights = tensors_of(store, unbroken.checkpoint)
    killed, rows = make_workspace(tmp_path / "killed")
    with pytest.raises(EOFError):  # rank 0 was killed, rank 1 noticed
        run_ranks(2, train_rank_and_die, job_of(killed, rows, "train.workers=2").spec, Kill(COMMITTED, 2))
    for workers in (1, 4):
        store = DirectoryStore(tmp_path / str(workers))
        shutil.copytree(killed.root, store.root)
        outcome = run_ranks(workers, train_as_rank, job_of(store, rows, f"train.workers={workers}"))[0]
        assert (outcome.resumed_at_step, outcome.last_step) == (6, LAST_STEP)
        assert outcome.tokens is not None
        assert outcome.tokens.cut == 0, "no worker lacked room for a text"
        for ours, theirs in zip(outcome.losses, unbroken.losses, strict=True):
            assert ours.step == theirs.step
            assert ours.metrics == pytest.approx(theirs.metrics, rel=LOSS_TOLERANCE), f"{workers} workers"
        for name, value in tensors_of(store, outcome.checkpoint).items():
            torch.testing.assert_close(
                value,
                weights[name],
                rtol=WEIGHT_TOLERANCE,
                atol=LEAST_WEIGHT_TOLERANCE,
                msg=lambda m, n=name: f"{n}: {m}",
            )
