import dataclasses

import pytest

from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import CancelledError, StoreError
from tasks.worker.launch.container_position import ContainerPosition
from tasks.worker.launch.processes import claim_attempt, spec_of_try, write_spec
from tests.support.fakes.stand_ins import health_spec

FIRST = ContainerPosition("job-1", 1, 0, 1, "127.0.0.1", None)


def test_an_attempt_belongs_to_its_first_job_with_all_tries_and_children(store):
    spec = health_spec(store)
    claim_attempt(store, spec, FIRST)
    for same in ({"try_number": 2}, {"array_index": 3}):
        position = dataclasses.replace(FIRST, **same)
        claim_attempt(store, spec_of_try(spec, position), position)
    with pytest.raises(CancelledError, match=r"attempt-1 belongs to job job-1; job job-2"):
        claim_attempt(store, spec, dataclasses.replace(FIRST, job="job-2"))


@pytest.mark.parametrize("record", [b"", b"[]", b"{}"])
def test_a_record_without_an_owner_is_refused_with_the_way_out(store, record):
    spec = health_spec(store)
    store.write("runs/run/health/attempt-1/owner.json", record)
    with pytest.raises(StoreError, match=r"owner.json .* delete it"):
        claim_attempt(store, spec, FIRST)


def test_later_tries_are_counted_from_the_submitted_attempt(store):
    spec = health_spec(store).model_copy(update={"attempt": 4, "submitted_as": 4})
    tries = [spec_of_try(spec, dataclasses.replace(FIRST, try_number=number)) for number in (1, 2, 3)]
    assert [(one.attempt, one.submitted_as, one.job_prefix) for one in tries] == [
        (4, 4, "runs/run/health/attempt-4"),
        (5, 4, "runs/run/health/attempt-4"),
        (6, 4, "runs/run/health/attempt-4"),
    ]


def test_the_spec_of_a_later_try_is_written_once(store):
    first = health_spec(store)
    second = spec_of_try(first, dataclasses.replace(FIRST, try_number=2))
    for _ in range(2):  # as two children of an array do
        write_spec(store, second)
    written = JobSpec.model_validate_json(store.read("runs/run/health/attempt-2/spec.json"))
    assert written == second
    write_spec(store, first)
    assert JobSpec.model_validate_json(store.read("runs/run/health/attempt-1/spec.json")) == first
