import pytest

from infra.root_cause import Ending
from tasks.contracts.outcomes import Check
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.errors import FailureClass
from tasks.runs.host_findings import Findings
from tasks.runs.host_records import known_hosts
from tasks.worker.launch.main_node import record_faulty_host
from tests.support.fakes.stand_ins import health_spec

BROKEN = "train: worker 5 of 64 was killed by SIGABRT; last lines:\nnrt_execute failed with 1202"
NETWORK = "RuntimeError: nrt_execute failed with 1206"
GONE = "node 1 (i-1) is lost: no message for 30.0 s"


@pytest.mark.parametrize(
    ("failure", "message", "excluded", "strikes"),
    [
        (FailureClass.HOST, BROKEN, True, 0),
        (FailureClass.HOST, NETWORK, False, 1),
        (FailureClass.HOST, GONE, None, 0),
        (FailureClass.OOM, "nrt_load failed with 4", None, 0),
        (FailureClass.CANCELLED, f"the container received SIGTERM\n{BROKEN}", None, 0),
    ],
)
def test_a_host_is_remembered_for_what_the_codes_say_of_its_hardware(store, failure, message, excluded, strikes):
    record_faulty_host(store, health_spec(store), Ending(failure=failure, message=message, node=1, at=0.0), "i-1")
    found = [(record.exclusion is not None, len(record.strikes)) for record in known_hosts(store)]
    assert found == ([] if excluded is None else [(excluded, strikes)])


def test_a_host_that_health_has_judged_is_not_struck_twice(store):
    spec = health_spec(store)
    check = Check.critical("nccom", False, BROKEN, "exclude host", host="i-1")
    store.write(FINDINGS.of(spec), Findings(checks=(check,)).to_json())
    record_faulty_host(store, spec, Ending(failure=FailureClass.HOST, message=BROKEN, node=0, at=0.0), "i-1")
    assert known_hosts(store) == ()


def test_a_node_that_never_came_has_no_host(store):
    record_faulty_host(
        store, health_spec(store), Ending(failure=FailureClass.HOST, message=BROKEN, node=1, at=0.0), None
    )
    assert known_hosts(store) == ()
