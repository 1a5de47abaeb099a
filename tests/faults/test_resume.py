"""Training killed with SIGKILL at exact places and started again ends like an unbroken run."""

import errno
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.foundation.errors import FailureClass, StoreError, classify
from tasks.worker import train
from tasks.worker.process.job import Job
from tests.support.processes.ends import CONFIG, LAST_STEP, End, assert_same_end, job_of, train_as_rank
from tests.support.processes.kills import Kill, train_and_die, train_rank_and_die
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import make_job, make_workspace, tiny_config, train_model

DROPOUT = "model.dropout=0.1"

RECORDED = "tasks.worker.training.loop:LoopRecorder.losses_if_due"
COMMITTED = "tasks.worker.training.checkpoint:commit"
UPLOAD = "infra.store.directory:DirectoryStore.upload"
CREATE = "infra.store.directory:DirectoryStore.create"
DELETE = "infra.store.directory:DirectoryStore.delete"
KILLS = {
    "before the first step": Kill("tasks.worker.training.loop:TrainStep.__call__", 1, "before"),
    "before the first checkpoint": Kill(RECORDED, 2),
    "while the first checkpoint is written": Kill(UPLOAD, 1, about="step-00000003/optimizer.safetensors"),
    "right after the first checkpoint": Kill(COMMITTED, 1),
    "between two checkpoints": Kill(RECORDED, 8),
    "while a later checkpoint is written": Kill(UPLOAD, 1, "before", about="step-00000009/model.safetensors"),
    "before a later manifest": Kill(CREATE, 1, "before", about="step-00000009/MANIFEST.json"),
    "right after a later checkpoint": Kill(COMMITTED, 3),
    "after an evaluation": Kill("tasks.worker.training.loop:LoopRecorder.holdout_if_due", 6),
    "while an old checkpoint is deleted": Kill(DELETE, 1, about="step-00000003/MANIFEST.json"),
    "before the complete manifest": Kill(CREATE, 1, "before", about="step-00000016/MANIFEST.json"),
    "after the complete checkpoint": Kill(COMMITTED, 6),
    "while the last partial ones are deleted": Kill(DELETE, 1, about="step-00000015/MANIFEST.json"),
    "before the result": Kill("tasks.worker.train:_agree", 1, "before"),
}


RESUMED_AT = {
    "before the first checkpoint": None,
    "right after the first checkpoint": 3,
    "while a later checkpoint is written": 6,
    "right after a later checkpoint": 9,
    "before the complete manifest": 15,
    "before the result": 16,
}


KEPT = {"before the first checkpoint": False, "between two checkpoints": True}  # work that the ledger counts


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> End:
    """The run without a kill."""
    store, rows = make_workspace(tmp_path_factory.mktemp("unbroken"))
    outcome = train_model(store, tiny_config(*CONFIG), rows)
    assert outcome.last_step == LAST_STEP
    return store, outcome


def kill(job: Job, at: Kill) -> None:
    assert finish(start(train_and_die, job.spec, at)) == -signal.SIGKILL, "it must be killed there"


@pytest.mark.parametrize("place", KILLS)
def test_a_killed_run_continues_and_ends_with_the_same_weights(tmp_path: Path, unbroken: End, place: str):
    store, rows = make_workspace(tmp_path)
    job = job_of(store, rows)
    kill(job, KILLS[place])
    if place in KEPT:
        assert store.exists(f"{job.spec.attempt_prefix}/kept.json") == KEPT[place]
    outcome = train.run(job)
    assert_same_end((store, outcome), unbroken)
    if place in RESUMED_AT:
        assert outcome.resumed_at_step == RESUMED_AT[place]


def test_a_killed_run_with_dropout_ends_with_the_same_weights(tmp_path: Path, unbroken: End):
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", KILLS["between two checkpoints"])):
        store, rows = make_workspace(folder)
        job = job_of(store, rows, DROPOUT)
        if at is not None:
            kill(job, at)
        ends.append((store, train.run(job)))
    assert_same_end(ends[1], ends[0])
    assert ends[1][1].losses != unbroken[1].losses, "dropout changes the losses"


def test_a_run_killed_three_times_ends_with_the_same_weights(tmp_path: Path, unbroken: End):
    store, rows = make_workspace(tmp_path)
    job = job_of(store, rows)
    for _ in range(3):
        kill(job, Kill(COMMITTED, 1))
    outcome = train.run(job)
    assert outcome.resumed_at_step == 9
    assert_same_end((store, outcome), unbroken)


def test_a_killed_run_after_an_earlier_one_ends_with_the_same_weights(tmp_path: Path):
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", Kill(COMMITTED, 2))):
        store, rows = make_workspace(folder)
        first = train_model(store, tiny_config(*CONFIG), rows, run_key="earlier")
        job = job_of(store, rows, parent=first.checkpoint)
        if at is not None:
            kill(job, at)
        ends.append((store, train.run(job)))
    assert (ends[1][1].first_step, ends[1][1].resumed_at_step) == (16, 21)
    assert_same_end(ends[1], ends[0])


def test_a_corrupt_newest_checkpoint_is_quarantined(tmp_path: Path, unbroken: End, capsys: pytest.CaptureFixture[str]):
    store, rows = make_workspace(tmp_path)
    job = job_of(store, rows)
    kill(job, KILLS["right after a later checkpoint"])
    path = store.path("lineages/main/step-00000009/model.safetensors")
    flip_a_byte(path)
    outcome = train.run(job)
    assert outcome.resumed_at_step == 6
    assert_same_end((store, outcome), unbroken)
    assert store.exists("quarantine/lineages/main/step-00000009.1/model.safetensors")
    log = capsys.readouterr().out
    assert str(path) in log
    assert "quarantine/lineages/main/step-00000009.1" in log


def test_a_run_with_only_corrupt_checkpoints_starts_over(tmp_path: Path, unbroken: End):
    store, rows = make_workspace(tmp_path)
    job = job_of(store, rows)
    kill(job, KILLS["right after a later checkpoint"])
    for path in sorted(store.path("lineages/main").glob("*/state.json")):
        flip_a_byte(path)
    outcome = train.run(job)
    assert outcome.resumed_at_step is None
    assert_same_end((store, outcome), unbroken)


def test_a_corrupt_parent_stops_the_run_and_is_not_moved(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    parent = train_model(store, tiny_config(*CONFIG), rows, run_key="earlier").checkpoint
    path = store.path(f"{parent.prefix}/optimizer.safetensors")
    flip_a_byte(path)
    with pytest.raises(StoreError, match=r"--set lineage=") as caught:
        train.run(job_of(store, rows, parent=parent))
    assert str(path) in str(caught.value)
    assert read_manifest(store, parent.prefix).sha256 == parent.sha256
    assert not store.list("quarantine")
    assert [path.name for path in store.path("lineages/main").iterdir()] == ["step-00000016"]


class FullDisk(DirectoryStore):
    """A workspace whose disk is full when the checkpoint of step 6 is half written."""

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        if "step-00000006/optimizer" in key:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path(key)))
        super().upload(source, key, instead_of)


def test_a_full_disk_stops_the_run_and_spoils_nothing(tmp_path: Path, unbroken: End):
    store, rows = make_workspace(tmp_path)
    job = job_of(store, rows)
    with pytest.raises(OSError, match="No space left") as caught:
        train.run(replace(job, store=FullDisk(store.root)))
    assert classify(caught.value) == FailureClass.DISK
    sealed = [key for key in store.list("lineages") if key.endswith("MANIFEST.json")]
    assert sealed == ["lineages/main/step-00000003/MANIFEST.json"]
    outcome = train.run(job)
    assert outcome.resumed_at_step == 3
    assert_same_end((store, outcome), unbroken)


def test_another_runs_partial_checkpoint_is_not_used(tmp_path: Path, unbroken: End):
    store, rows = make_workspace(tmp_path)
    abandoned = make_job(
        store,
        tiny_config(*CONFIG, "train.learning_rate=0.1"),
        TrainInputs(rows=(rows,), history=(), parent=None),
        run_key="abandoned",
    )
    kill(abandoned, KILLS["right after a later checkpoint"])
    outcome = train.run(job_of(store, rows))
    assert outcome.resumed_at_step is None
    assert outcome.losses == unbroken[1].losses
    assert outcome.checkpoint == unbroken[1].checkpoint


def test_two_workers_continue_together(tmp_path: Path):
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", Kill(COMMITTED, 2))):
        store, rows = make_workspace(folder)
        job = job_of(store, rows, "train.workers=2")
        if at is not None:
            with pytest.raises(EOFError):  # rank 0 was killed, rank 1 noticed
                run_ranks(2, train_rank_and_die, job.spec, at)
        first, second = run_ranks(2, train_as_rank, job)
        assert first.checkpoint == second.checkpoint
        ends.append((store, first))
    assert ends[1][1].resumed_at_step == 6
    assert_same_end(ends[1], ends[0])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
