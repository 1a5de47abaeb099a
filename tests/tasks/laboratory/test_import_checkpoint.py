from pathlib import Path

import pytest

from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import ImportInputs, JobSpec, Waiter
from tasks.contracts.references import CheckpointRef
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.errors import ConfigError, DataError
from tasks.laboratory.import_checkpoint import Imported, import_checkpoint
from tasks.planning.next_run import plan_run
from tasks.planning.start import unfinished_before
from tasks.runs import ledger
from tasks.runs.lineage import head
from tasks.runs.run import read_runs
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import carry_out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"weights")
    return path


def take(store: DirectoryStore, file: Path, *overrides: str, span: str | None = None) -> Imported:
    return import_checkpoint(store, small_config(*overrides), file, span)


def beginning(store: DirectoryStore) -> CheckpointRef:
    found = head(store, "main")
    assert found is not None
    assert found[1].consumed == ()
    return found[0]


def test_a_worker_gets_the_file_and_the_rows_of_the_first_window(store, runner, file):
    imported = take(store, file, span="2021-Q2")
    assert runner.stages == ["validate", "import-checkpoint"]
    inputs = runner.specs[-1].inputs
    assert isinstance(inputs, ImportInputs)
    assert inputs.file == str(file)
    assert [rows.span.name for rows in inputs.rows] == ["2021-Q1", "2021-Q2"]
    assert imported.outcome.checkpoint == beginning(store)
    assert imported.outcome.sha256 == inputs.sha256


def test_a_relative_path_is_resolved_for_the_worker(store, runner, file, monkeypatch):
    monkeypatch.chdir(file.parent)
    take(store, Path("weights.pt"))
    inputs = runner.specs[-1].inputs
    assert isinstance(inputs, ImportInputs)
    assert inputs.file == str(file)


def test_a_worker_on_another_machine_gets_a_temporary_copy(store, runner, file, monkeypatch):
    seen = {}

    def read(spec: JobSpec, waiter: Waiter, tries: int) -> None:
        if isinstance(spec.inputs, ImportInputs):
            assert spec.inputs.copy_key is not None
            seen[spec.inputs.copy_key] = store.read(spec.inputs.copy_key)
        FakeRunner.run(runner, spec, waiter, tries)

    monkeypatch.setattr(runner, "run", read)
    plan = take(store, file, "compute=batch").plan
    ((key, content),) = seen.items()
    assert key.startswith(f"runs/{plan.run_key}/import-checkpoint/weights-")
    assert key.endswith("/weights.pt")
    assert content == b"weights"
    assert not store.exists(key)


def test_the_import_is_in_the_ledger_but_is_no_run(store, runner, file):
    imported = take(store, file)
    records = ledger.records(store, imported.plan.run_key)
    assert [record.stage for record in records] == [Stage.validate, Chore.import_checkpoint]
    assert all(record.failure is None for record in records)
    assert read_runs(Snapshot(store), ()) == []


def test_the_same_file_is_not_imported_twice(store, runner, file):
    first = take(store, file)
    assert take(store, file) == first
    assert len(runner.specs) == 2


def test_a_damaged_checkpoint_is_made_again(store, runner, file):
    first = take(store, file)
    store.delete(f"{first.outcome.checkpoint.prefix}/model.safetensors")
    assert take(store, file) == first
    assert runner.stages == ["validate", "import-checkpoint", "import-checkpoint"]


def test_an_import_without_its_result_is_repeated(store, runner, file):
    first = take(store, file)
    store.delete(f"runs/{first.plan.run_key}/import-checkpoint/result.json")
    assert take(store, file) == first
    assert runner.specs[-1].attempt == 2


def test_the_pipeline_continues_from_the_imported_weights(store, runner, file):
    imported = take(store, file)
    plan = plan_run(store, small_config(), "2021-Q1")
    assert plan.parent == imported.outcome.checkpoint
    assert unfinished_before(store, plan) is None
    run = carry_out(plan)
    assert run.trained.first_step == 0
    assert run.released is not None
    found = head(store, "main")
    assert found is not None
    assert found[1].parent == imported.outcome.checkpoint
    assert plan_run(store, small_config()).span.name == "2021-Q2"


def test_the_import_can_be_tried_again_with_another_file(store, runner, file):
    runner.fail(Chore.import_checkpoint, DataError("weights.pt is cut off"))
    with pytest.raises(DataError, match="is cut off"):
        take(store, file)
    assert head(store, "main") is None
    file.write_bytes(b"whole weights")
    assert take(store, file).outcome.checkpoint == beginning(store)
    assert [spec.attempt for spec in runner.specs] == [1, 1, 2]


def test_another_file_into_the_same_lineage_is_refused(store, runner, file):
    take(store, file)
    file.write_bytes(b"other weights")
    before = sorted(store.root.rglob("*"))
    with pytest.raises(ConfigError, match=r"another file.*lineage="):
        take(store, file)
    assert sorted(store.root.rglob("*")) == before
    assert take(store, file, "lineage=other").outcome.checkpoint.prefix == "lineages/other/step-00000000"


def test_a_lineage_that_was_trained_is_refused(store, runner, file):
    carry_out(plan_run(store, small_config()))
    before = len(runner.specs)
    with pytest.raises(ConfigError, match=r"main was .*lineage="):
        take(store, file)
    assert len(runner.specs) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, r"/it: there is no such file"),
        (lambda path: path.touch(), r"/it is empty"),
        (lambda path: path.mkdir(), r"/it is a folder; give the file with the weights$"),
        (lambda path: (path.mkdir(), (path / "a.bin").touch()), r"/it is a folder; .*in it there is a\.bin$"),
    ],
)
def test_a_path_that_is_no_weights_file_is_refused_at_once(store, runner, tmp_path, make, message):
    make(tmp_path / "it")
    with pytest.raises(ConfigError, match=message):
        take(store, tmp_path / "it")
    assert runner.specs == []
    assert not store.list("runs")


def test_a_lineage_in_use_is_refused_after_a_while(store, runner, file, impatient):
    with store.lock("lineages/main.run"), pytest.raises(Conflict, match="in use"):
        take(store, file)
    assert runner.specs == []
