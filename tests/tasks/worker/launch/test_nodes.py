"""The launchers of both kinds of node, each against a test at the other end of the link; the workers are scripts."""

import dataclasses
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import pytest

from infra.root_cause import Ending
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Check, Phases, WorkerFailure
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.errors import CancelledError, FailureClass, HostError
from tasks.foundation.records import Record
from tasks.runs.host_records import Findings, known_hosts
from tasks.worker.launch.node_link import Children, Hello, JobEnd, Link, Terminating, Welcome, WorkersEnded, connect
from tasks.worker.launch.nodes import ChildNode, MainNode, record_faulty_host
from tasks.worker.launch.this_node import ContainerPosition, Report, StopSignals, Workers
from tasks.worker.launch.torchrun import AgentReport
from tests.support.fakes.stand_ins import health_spec

DEADLINE_SECONDS = 20.0
SILENCE_SECONDS = 4  # longer than a test stands still on a busy machine
NEVER_ENDS = "import time; time.sleep(600)"
REPORTS = """
import os, sys
from pathlib import Path
with open(int(os.environ["MILLRACE_REPORT"]), "w") as report:
    report.write({report!r})
print("last line")
sys.exit({code})
"""
M = TypeVar("M", bound=Record)
T = TypeVar("T")
SUCCESS = Report(code=0, agent=AgentReport(), tail=())


def ends(code: int = 0, report: AgentReport | None = None) -> str:
    return REPORTS.format(code=code, report=report.model_dump_json() if report else "")


@pytest.fixture
def position() -> ContainerPosition:
    return ContainerPosition(str(uuid.uuid4()), 1, 0, 2, "127.0.0.1", None)


def starter(program: str):
    environment = {"PATH": "", "PYTHONUNBUFFERED": "1"}
    return lambda: Workers([sys.executable, "-S", "-c", program], environment)


@pytest.fixture
def links() -> Iterator[list[Link]]:
    """The links that a test makes; they are closed at its end."""
    made: list[Link] = []
    yield made
    for link in made:
        link.close()


def in_background(function) -> Future:
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], T | None]) -> T:
    """What `condition` gives, once it is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


class Main:
    """A main node at work, and the test as its child."""

    def __init__(
        self,
        position,
        store,
        links,
        program,
        signals=None,
        rendezvous_timeout_seconds=DEADLINE_SECONDS,
        silence_seconds=SILENCE_SECONDS,
    ) -> None:
        spec = health_spec(store, 2, f"batch.heartbeat_timeout_seconds={silence_seconds}")
        node = MainNode(
            position, store, spec, "i-0", signals or StopSignals(), "", starter(program), rendezvous_timeout_seconds
        )
        self.position, self.links = position, links
        self.result = in_background(node.run)

    def join(self, **changes) -> Link:
        link = until(lambda: connect(self.position, 1))
        self.links.append(link)
        link.send(Hello(job=self.position.job, try_number=1, node=1, host="i-1").model_copy(update=changes))
        return link

    def ending(self):
        return self.result.result(DEADLINE_SECONDS)


def received(link: Link, kind: type[M]) -> M:
    """The next message of that kind; sends heartbeats while it waits."""

    def find() -> M | None:
        link.send_heartbeat()
        assert not link.closed
        return next((message for message in link.receive() if isinstance(message, kind)), None)

    return until(find)


def test_a_main_node_ends_when_all_nodes_workers_have_ended(position, store, links):
    main = Main(position, store, links, ends())
    link = main.join()
    received(link, Welcome)
    link.send(WorkersEnded(report=SUCCESS))
    assert received(link, JobEnd).code == 0
    assert main.ending() is None


def test_the_main_nodes_workers_wait_for_all_nodes(position, store, links, tmp_path):
    main = Main(position, store, links, f"open({str(tmp_path / 'begun')!r}, 'w')")
    link = main.join(job="another")
    until(lambda: link.receive() or link.closed)
    assert not (tmp_path / "begun").exists()
    received(link := main.join(), Welcome)
    link.send(WorkersEnded(report=SUCCESS))
    assert main.ending() is None
    assert (tmp_path / "begun").exists()


def test_a_node_that_never_connects_is_host(position, store, links):
    ending = Main(position, store, links, NEVER_ENDS, rendezvous_timeout_seconds=0.3).ending()
    assert (ending.failure, ending.node) == ("HOST", 1)
    assert "batch.rendezvous_timeout_seconds = 0.3" in ending.message


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("closes", "node 1 (i-1) is lost: its connection closed"),
        ("is silent", "node 1 (i-1) is lost: no message for 1."),
        ("terminating", "node 1 (i-1) received SIGTERM"),
        ("nonsense", "node 1 (i-1) is lost"),
    ],
)
def test_a_lost_node_ends_the_main_nodes_workers_as_host(position, store, links, what, message):
    silence = {"silence_seconds": 1} if what == "is silent" else {}
    main = Main(position, store, links, NEVER_ENDS, **silence)
    received(link := main.join(), Welcome)
    began = time.monotonic()
    match what:
        case "closes":
            link.close()
        case "terminating":
            link.send(Terminating())
        case "nonsense":
            link._connection.sendall(b"GET / HTTP/1.1\n")
    ending = main.ending()
    assert time.monotonic() - began < 5
    assert (ending.failure, ending.node) == ("HOST", 1)
    assert message in ending.message


def test_an_unfit_host_of_a_child_node_is_refused_before_any_worker_starts(position, store, links, tmp_path):
    main = Main(position, store, links, f"open({str(tmp_path / 'begun')!r}, 'w')")
    link = main.join(unfit="host i-1 is excluded")
    assert received(link, JobEnd).code == 70
    assert "(i-1): host i-1" in main.ending().message
    assert not (tmp_path / "begun").exists()


def failure(store: DirectoryStore, rank: int, at: float, name: str, message: str) -> None:
    record = WorkerFailure(rank=rank, at=at, failure=name, message=message, traceback="", phases=Phases())
    store.write(f"runs/run/health/attempt-1/error-rank{rank}.json", record.to_json())


@pytest.mark.parametrize(
    ("name", "failure_class", "message", "node"),
    [
        ("DATA", "DATA", "row 7 is bad (worker 0 of 2)", 0),
        ("HOST", "HOST", "node 1 (i-1) is lost", 1),  # what gloo says of a peer that is gone
    ],
)
def test_an_error_that_no_lost_node_explains_is_the_cause(position, store, links, name, failure_class, message, node):
    failure(store, 0, 1.0, name, "row 7 is bad")
    main = Main(position, store, links, ends(1, AgentReport(codes={0: 65})))
    received(link := main.join(), Welcome)
    link.close()
    ending = main.ending()
    assert (ending.failure, ending.node) == (failure_class, node)
    assert message in ending.message


def test_a_killed_worker_of_a_child_node_is_the_cause_of_other_errors(position, store, links):
    failure(store, 0, 1.0, "HOST", "connection closed by peer")
    main = Main(position, store, links, ends(1, AgentReport(codes={0: 70})))
    received(link := main.join(), Welcome)
    link.send(WorkersEnded(report=Report(code=1, agent=AgentReport(codes={1: -9}), tail=("last words",))))
    assert received(link, JobEnd).code == 70
    ending = main.ending()
    assert (ending.failure, ending.node) == ("HOST", 1)
    assert "by SIGKILL" in ending.message
    assert "[node 1] last words" in ending.message
    assert "[node 0] last line" in ending.message


def test_a_failed_child_ends_the_main_nodes_workers(position, store, links):
    failure(store, 1, 1.0, "DATA", "row 7 is bad")
    main = Main(position, store, links, NEVER_ENDS)
    received(link := main.join(), Welcome)
    link.send(WorkersEnded(report=Report(code=1, agent=AgentReport(codes={1: 65}), tail=())))
    assert received(link, JobEnd).code == 65
    assert "(worker 1 of 2)" in main.ending().message


def test_a_child_whose_workers_do_not_end_is_a_hang(position, store, links):
    main = Main(position, store, links, ends())
    received(link := main.join(), Welcome)
    assert received(link, JobEnd).code == 71
    ending = main.ending()
    assert (ending.failure, ending.node) == ("HANG", 1)
    assert "workers of node 1" in ending.message


def test_torchrun_that_fails_before_its_workers_start_reports_why(position, store, links):
    broken = AgentReport(failure="HOST", message="DistNetworkError: address already in use")
    main = Main(dataclasses.replace(position, nodes=1), store, links, ends(1, broken))
    ending = main.ending()
    assert (ending.failure, ending.node) == ("HOST", 0)
    assert ending.message.endswith("DistNetworkError: address already in use")


def test_torchrun_that_dies_silently_is_reported_with_its_last_lines(position, store, links):
    ending = Main(dataclasses.replace(position, nodes=1), store, links, ends(3)).ending()
    assert (ending.failure, ending.node) == ("CODE", 0)
    assert ending.message.endswith("last lines:\nlast line")


@pytest.mark.parametrize("child", ["none", "lost"])
def test_sigterm_is_the_cause_of_later_failures(position, store, links, child):
    signals = StopSignals()
    main = Main(
        position,
        store,
        links,
        "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(9)); time.sleep(600)",
        signals,
    )
    received(link := main.join(), Welcome)
    if child == "lost":
        link.close()
    signals.count = 1
    assert main.ending().failure == "CANCELLED"


def test_a_second_sigterm_kills_workers_that_ignore_the_first(position, store, links):
    signals = StopSignals()
    ignores_sigterm = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ignores_sigterm', flush=True); time.sleep(600)"
    )
    main = Main(dataclasses.replace(position, nodes=1), store, links, ignores_sigterm, signals)
    began = time.monotonic()
    signals.count = 2
    assert main.ending().failure == "CANCELLED"
    assert time.monotonic() - began < 5


def test_a_taken_port_is_host(position, store, links):
    with socket.create_server(("", position.link_port)):
        main = Main(position, store, links, NEVER_ENDS)
        with pytest.raises(HostError, match=f"port {position.link_port}"):
            main.ending()


class Child:
    """A child node at work, and the test as its main node."""

    def __init__(
        self,
        position,
        store,
        program,
        signals=None,
        rendezvous_timeout_seconds=DEADLINE_SECONDS,
        silence_seconds=SILENCE_SECONDS,
    ) -> None:
        spec = health_spec(store, 2, f"batch.heartbeat_timeout_seconds={silence_seconds}")
        own = dataclasses.replace(position, node=1)
        node = ChildNode(own, spec, "i-1", signals or StopSignals(), "", starter(program), rendezvous_timeout_seconds)
        self.result = in_background(node.run)

    def code(self) -> int:
        return self.result.result(DEADLINE_SECONDS)


def see(children: Children, condition):
    """What `condition` gives, once the main node sees it."""

    def look():
        children.wait(0.01)
        return condition()

    return until(look)


def joined(children: Children):
    return see(children, lambda: children.nodes.get(1))


def test_a_child_node_waits_for_the_main_node_and_reports_how_its_workers_ended(position, store):
    codes = AgentReport(codes={1: 65})
    child = Child(position, store, ends(1, codes))  # before the main node listens
    with Children(position, 1) as children:
        seen = joined(children)
        assert seen.name == "node 1 (i-1)"
        children.send(Welcome())
        report = see(children, lambda: seen.report)
        assert (report.code, report.agent, report.tail) == (1, codes, ("last line",))
        assert not child.result.done()
        children.send(JobEnd(code=65))
        assert child.code() == 65


def test_a_child_node_starts_nothing_before_the_welcome(position, store, tmp_path):
    child = Child(position, store, f"open({str(tmp_path / 'begun')!r}, 'w')")
    with Children(position, 1) as children:
        joined(children)
        children.send(JobEnd(code=70))
        assert child.code() == 70
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(("what", "message"), [("closes", "closed its connection"), ("is silent", "has been silent")])
def test_a_child_node_ends_when_the_main_node_is_lost(position, store, what, message):
    silence = {"silence_seconds": 1} if what == "is silent" else {}
    child = Child(position, store, NEVER_ENDS, **silence)
    with Children(position, 1) as children:
        joined(children)
        children.send(Welcome())
        if what == "is silent":
            with pytest.raises(HostError, match=message):
                child.code()
    with pytest.raises(HostError, match=message):
        child.code()


def test_a_child_node_with_finished_workers_needs_no_main_node(position, store):
    child = Child(position, store, ends())
    with Children(position, 1) as children:
        seen = joined(children)
        children.send(Welcome())
        see(children, lambda: seen.report)
    assert child.code() == 0


def test_a_child_node_without_a_main_node_gives_up(position, store):
    with pytest.raises(
        HostError,
        match=rf":{position.link_port} .*_seconds = 0.3;",
    ):
        Child(position, store, NEVER_ENDS, rendezvous_timeout_seconds=0.3).code()


def test_a_child_node_with_sigterm_waits_for_the_main_nodes_end(position, store):
    signals = StopSignals()
    child = Child(position, store, NEVER_ENDS, signals)
    with Children(position, 1) as children:
        seen = joined(children)
        children.send(Welcome())
        signals.count = 1
        see(children, lambda: seen.terminating)
        assert seen.report is None
        children.send(JobEnd(code=76))
        assert child.code() == 76


def test_a_child_node_with_sigterm_before_its_start_is_cancelled(position, store):
    signals = StopSignals()
    signals.count = 1
    with pytest.raises(CancelledError):
        Child(position, store, NEVER_ENDS, signals).code()


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
