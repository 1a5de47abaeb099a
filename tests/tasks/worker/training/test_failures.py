from collections.abc import Sequence
from pathlib import Path

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.results import Phases
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass
from tasks.runs import ledger
from tasks.worker.training.checkpoint_interval import ASSUMED_SECONDS_BETWEEN, recorded_failures
from tests.support.workspace.specs import spec_of

LOST = FailureClass.HOST


def record(store: DirectoryStore, run_key: str, endings: Sequence[FailureClass | None], stage: Stage = Stage.train):
    """Attempts of a hundred seconds and as long in the queue, that ended so."""
    for attempt, failure in enumerate(endings, start=1):
        spec = spec_of(stage, 1, attempt=attempt).model_copy(update={"run_key": run_key})
        begun = ledger.begin(store, spec)
        changes = {"failure": failure, "ended_at": begun.started_at, "seconds": Phases(queued=100.0, lost=100.0)}
        store.write(f"{spec.attempt_prefix}/ledger.json", begun.model_copy(update=changes).to_json())


def train(store: DirectoryStore, folder: Path, run_key: str, step: int, lineage: str = "main"):
    """A checkpoint of a run, of which only the manifest counts here."""
    (folder / str(step)).mkdir()
    commit(store, f"lineages/{lineage}/step-{step:08d}", folder / str(step), "checkpoint", {"run_key": run_key})


def test_attempts_of_the_lineages_trainings_count_and_their_time_in_the_queue_does_not(store, tmp_path):
    train(store, tmp_path, "one", 10)
    train(store, tmp_path, "two", 20)
    train(store, tmp_path, "elsewhere", 30, lineage="other")
    record(store, "one", [LOST, LOST, None])
    record(store, "two", [FailureClass.HANG, None])
    record(store, "now", [FailureClass.STORE])
    record(store, "elsewhere", [LOST] * 5)
    record(store, "two", [LOST] * 5, Stage.infer)
    found = recorded_failures(store, "main", "now")
    assert (found.failed, found.attempts, found.seconds) == (4, 6, 600.0)
    assert found.seconds_between == 150.0


def test_failures_that_no_checkpoint_helps_against_do_not_count(store):
    endings = [FailureClass.CAPACITY, FailureClass.CODE, FailureClass.CONFIG, FailureClass.CANCELLED, LOST]
    record(store, "now", endings)
    assert recorded_failures(store, "main", "now").failed == 1


def test_few_failures_say_little(store):
    record(store, "now", [LOST, LOST])
    found = recorded_failures(store, "main", "now")
    assert (found.enough, found.seconds_between) == (False, ASSUMED_SECONDS_BETWEEN)


def test_an_attempt_that_still_runs_and_an_unreadable_record_count_for_nothing(store, tmp_path):
    train(store, tmp_path, "damaged", 10)
    record(store, "damaged", [LOST, LOST])
    store.write("runs/damaged/train/attempt-2/ledger.json", b"{")
    store.write("lineages/main/step-00000020/MANIFEST.json", b"{")
    ledger.begin(store, spec_of(Stage.train, 1).model_copy(update={"run_key": "now"}))
    assert recorded_failures(store, "main", "now") == (1, 1, 100.0), "the first attempt of the damaged run alone"
