"""The launchers of both kinds of node against the other side of the link, which is the test; workers stand in."""

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

from infra.store import DirectoryStore
from tasks.contracts import Phases, WorkerFailure
from tasks.errors import CancelledError, HostError
from tasks.records import Record
from tasks.worker.launch.child_node import ChildNode
from tasks.worker.launch.main_node import MainNode
from tasks.worker.launch.place import Place
from tasks.worker.launch.processes import Report, Workers
from tasks.worker.launch.tether import Children, End, Ended, Hello, Link, Terminating, Welcome, connect
from tasks.worker.launch.told import Told
from tasks.worker.launch.torchrun import AgentReport
from tests.support.stand_ins import health_spec

DEADLINE_SECONDS = 20.0
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
WELL = Report(code=0, agent=AgentReport(), tail=())


def ends(code: int = 0, report: AgentReport | None = None) -> str:
    return REPORTS.format(code=code, report=report.model_dump_json() if report else "")


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def place() -> Place:
    return Place(str(uuid.uuid4()), 1, 0, 2, "127.0.0.1", None)


def starter(program: str):
    environment = {"PATH": "", "PYTHONUNBUFFERED": "1"}
    return lambda: Workers([sys.executable, "-S", "-c", program], environment)


@pytest.fixture
def links() -> Iterator[list[Link]]:
    """Those that the test made, closed when it is over."""
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
    """What `condition` gives, once that is something."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


class Main:
    """A main node at work, and the test as its child."""

    def __init__(self, place, store, links, program, told=None, join_seconds=DEADLINE_SECONDS) -> None:
        spec = health_spec(store, 2, "batch.silence_seconds=1")
        node = MainNode(place, store, spec, told or Told(), "", starter(program), join_seconds)
        self.place, self.links = place, links
        self.result = in_background(node.run)

    def join(self, **changes) -> Link:
        link = until(lambda: connect(self.place, 1))
        self.links.append(link)
        link.send(Hello(job=self.place.job, try_number=1, node=1, host="i-1").model_copy(update=changes))
        return link

    def ending(self):
        return self.result.result(DEADLINE_SECONDS)


def hear(link: Link, kind: type[M]) -> M:
    """The next message of that kind; beats meanwhile."""

    def find() -> M | None:
        link.beat()
        assert not link.closed
        return next((message for message in link.receive() if isinstance(message, kind)), None)

    return until(find)


def test_a_main_node_is_done_when_the_workers_of_all_nodes_are(place, store, links):
    main = Main(place, store, links, ends())
    link = main.join()
    hear(link, Welcome)
    link.send(Ended(report=WELL))
    assert hear(link, End).code == 0
    assert main.ending() is None


def test_the_main_nodes_workers_wait_until_all_nodes_are_there(place, store, links, tmp_path):
    main = Main(place, store, links, f"open({str(tmp_path / 'begun')!r}, 'w')")
    stranger = main.join(job="another")
    until(lambda: stranger.receive() or stranger.closed)
    assert not (tmp_path / "begun").exists()
    hear(link := main.join(), Welcome)
    link.send(Ended(report=WELL))
    assert main.ending() is None
    assert (tmp_path / "begun").exists()


def test_a_node_that_never_comes_is_host(place, store, links):
    ending = Main(place, store, links, NEVER_ENDS, join_seconds=0.3).ending()
    assert (ending.failure, ending.node) == ("HOST", 1)
    assert "node 1 of 2 did not come within 0.3 s" in ending.message


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("closes", "node 1 (i-1) is lost: its connection closed"),
        ("is silent", "node 1 (i-1) is lost: nothing was heard of it for 1."),
        ("terminating", "node 1 (i-1) was told to end (SIGTERM)"),
        ("nonsense", "node 1 (i-1) is lost"),
    ],
)
def test_a_node_that_goes_away_ends_the_main_nodes_workers_as_host(place, store, links, what, message):
    main = Main(place, store, links, NEVER_ENDS)
    hear(link := main.join(), Welcome)
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


def test_an_unfit_host_of_a_child_node_is_host_before_anything_starts(place, store, links, tmp_path):
    main = Main(place, store, links, f"open({str(tmp_path / 'begun')!r}, 'w')")
    link = main.join(unfit="host i-1 is excluded")
    assert hear(link, End).code == 70
    assert main.ending().message == "node 1 (i-1): host i-1 is excluded"
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
def test_the_error_that_a_lost_node_does_not_explain_is_the_cause(
    place, store, links, name, failure_class, message, node
):
    failure(store, 0, 1.0, name, "row 7 is bad")
    main = Main(place, store, links, ends(1, AgentReport(codes={0: 65})))
    hear(link := main.join(), Welcome)
    link.close()
    ending = main.ending()
    assert (ending.failure, ending.node) == (failure_class, node)
    assert message in ending.message


def test_a_killed_worker_of_a_child_node_is_the_cause_of_what_others_say(place, store, links):
    failure(store, 0, 1.0, "HOST", "connection closed by peer")
    main = Main(place, store, links, ends(1, AgentReport(codes={0: 70})))
    hear(link := main.join(), Welcome)
    link.send(Ended(report=Report(code=1, agent=AgentReport(codes={1: -9}), tail=("last words",))))
    assert hear(link, End).code == 70
    ending = main.ending()
    assert (ending.failure, ending.node) == ("HOST", 1)
    assert "worker 1 of 2 was killed by SIGKILL without a word" in ending.message
    assert "[node 1] last words" in ending.message
    assert "[node 0] last line" in ending.message


def test_a_failed_child_ends_workers_that_do_not_notice(place, store, links):
    failure(store, 1, 1.0, "DATA", "row 7 is bad")
    main = Main(place, store, links, NEVER_ENDS)
    hear(link := main.join(), Welcome)
    link.send(Ended(report=Report(code=1, agent=AgentReport(codes={1: 65}), tail=())))
    assert hear(link, End).code == 65
    assert main.ending().message == "row 7 is bad (worker 1 of 2)"


def test_workers_of_a_child_that_do_not_end_with_the_others_are_a_hang(place, store, links):
    main = Main(place, store, links, ends())
    hear(link := main.join(), Welcome)
    assert hear(link, End).code == 71
    ending = main.ending()
    assert (ending.failure, ending.node) == ("HANG", 1)
    assert "the workers of node 1 did not end within 1 s" in ending.message


def test_torchrun_that_fails_before_there_are_workers_tells_why(place, store, links):
    broken = AgentReport(failure="HOST", message="DistNetworkError: address already in use")
    main = Main(dataclasses.replace(place, nodes=1), store, links, ends(1, broken))
    ending = main.ending()
    assert (ending.failure, ending.node) == ("HOST", 0)
    assert ending.message == "health: torchrun on node 0 failed: DistNetworkError: address already in use"


def test_torchrun_that_dies_without_a_word_is_told_with_the_last_lines(place, store, links):
    ending = Main(dataclasses.replace(place, nodes=1), store, links, ends(3)).ending()
    assert (ending.failure, ending.node) == ("CODE", 0)
    assert ending.message.endswith("torchrun on node 0 failed: it ended with 3; last lines:\nlast line")


@pytest.mark.parametrize("child", ["none", "lost"])
def test_being_told_to_end_explains_what_comes_after_it(place, store, links, child):
    told = Told()
    main = Main(
        place,
        store,
        links,
        "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(9)); time.sleep(600)",
        told,
    )
    hear(link := main.join(), Welcome)
    if child == "lost":
        link.close()
    told.times = 1
    assert main.ending().failure == "CANCELLED"


def test_told_twice_it_does_not_wait_for_workers_that_do_not_end(place, store, links):
    told = Told()
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    main = Main(dataclasses.replace(place, nodes=1), store, links, deaf, told)
    began = time.monotonic()
    told.times = 2
    assert main.ending().failure == "CANCELLED"
    assert time.monotonic() - began < 5


def test_a_taken_port_is_host(place, store, links):
    with socket.create_server(("", place.tether_port)):
        main = Main(place, store, links, NEVER_ENDS)
        with pytest.raises(HostError, match=f"port {place.tether_port}"):
            main.ending()


class Child:
    """A child node at work, and the test as its main node."""

    def __init__(self, place, store, program, told=None, join_seconds=DEADLINE_SECONDS) -> None:
        spec = health_spec(store, 2, "batch.silence_seconds=1")
        own = dataclasses.replace(place, node=1)
        node = ChildNode(own, spec, "i-1", told or Told(), "", starter(program), join_seconds)
        self.result = in_background(node.run)

    def code(self) -> int:
        return self.result.result(DEADLINE_SECONDS)


def joined(children: Children):
    """The child node as the main one sees it, once it is there."""

    def look():
        children.wait(0.01)
        return children.nodes.get(1)

    return until(look)


def see(children: Children, condition):
    def look():
        children.wait(0.01)
        return condition()

    return until(look)


def test_a_child_node_waits_for_the_main_one_and_tells_how_its_workers_ended(place, store):
    codes = AgentReport(codes={1: 65})
    child = Child(place, store, ends(1, codes))  # before anybody listens
    with Children(place, 1) as children:
        seen = joined(children)
        assert seen.name == "node 1 (i-1)"
        children.tell(Welcome())
        report = see(children, lambda: seen.report)
        assert (report.code, report.agent, report.tail) == (1, codes, ("last line",))
        assert not child.result.done()
        children.tell(End(code=65))
        assert child.code() == 65


def test_a_child_node_starts_nothing_before_it_is_welcome(place, store, tmp_path):
    child = Child(place, store, f"open({str(tmp_path / 'begun')!r}, 'w')")
    with Children(place, 1) as children:
        joined(children)
        children.tell(End(code=70))
        assert child.code() == 70
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(("what", "message"), [("closes", "closed its connection"), ("is silent", "has been silent")])
def test_a_child_node_ends_with_the_main_one(place, store, what, message):
    child = Child(place, store, NEVER_ENDS)
    with Children(place, 1) as children:
        joined(children)
        children.tell(Welcome())
        if what == "is silent":
            with pytest.raises(HostError, match=message):
                child.code()
    with pytest.raises(HostError, match=message):
        child.code()


def test_a_child_node_whose_workers_are_done_does_not_mind_that_the_main_one_has_gone(place, store):
    child = Child(place, store, ends())
    with Children(place, 1) as children:
        seen = joined(children)
        children.tell(Welcome())
        see(children, lambda: seen.report)
    assert child.code() == 0


def test_a_child_node_without_a_main_one_gives_up(place, store):
    with pytest.raises(HostError, match=rf"no main node at 127.0.0.1:{place.tether_port} within 0.3 s"):
        Child(place, store, NEVER_ENDS, join_seconds=0.3).code()


def test_a_child_node_that_is_told_to_end_lets_the_main_one_decide_when(place, store):
    told = Told()
    child = Child(place, store, NEVER_ENDS, told)
    with Children(place, 1) as children:
        seen = joined(children)
        children.tell(Welcome())
        told.times = 1
        see(children, lambda: seen.terminating)
        assert seen.report is None
        children.tell(End(code=76))
        assert child.code() == 76


def test_a_child_node_that_is_told_to_end_before_it_began_is_cancelled(place, store):
    told = Told()
    told.times = 1
    with pytest.raises(CancelledError):
        Child(place, store, NEVER_ENDS, told).code()
