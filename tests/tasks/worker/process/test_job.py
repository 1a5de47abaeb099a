"""How a worker reports the error that ends it."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import HealthInputs
from tasks.contracts.outcomes import WorkerFailure
from tasks.foundation.errors import POLICIES, FailureClass
from tests.support.workspace.jobs import make_job, tiny_config


@pytest.mark.parametrize(
    ("error", "failure", "says"),
    [
        (RuntimeError("nrt_execute failed with 4"), FailureClass.OOM, "device memory ran out"),
        (RuntimeError("nrt_execute failed with 1202"), FailureClass.HOST, "replace this machine"),
        (ValueError("nrt_execute failed with 4"), FailureClass.CODE, "ValueError: nrt_execute failed with 4"),
    ],
    ids=["memory", "hardware", "no error of the runtime"],
)
def test_a_code_of_the_neuron_runtime_decides_the_class(
    tmp_path: Path, error: Exception, failure: FailureClass, says: str
) -> None:
    job = make_job(DirectoryStore(tmp_path), tiny_config(), HealthInputs())
    assert job.fail(error) == POLICIES[failure].exit_code
    record = WorkerFailure.model_validate_json(job.store.read(f"{job.spec.attempt_prefix}/error-rank0.json"))
    assert record.failure == failure
    assert says in record.message
