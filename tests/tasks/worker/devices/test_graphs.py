import pytest

from tasks.foundation.errors import CompileError
from tasks.worker.devices.base import GraphWatch
from tests.support.pages.golden import Golden


class Runtime:
    """A runtime that compiles on call; `reads` loads a graph without a new file."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        self.files: dict[str, int] = {}
        self.watch = GraphWatch(lambda: (self.count, self.seconds), lambda: dict(self.files))
        self.watch.start()

    def compiles(self, name: str, seconds: float = 2.0) -> None:
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self.files[name] = 100
        self.watch.poll()

    def reads(self, seconds: float = 0.5) -> None:
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self.watch.poll()


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


def test_each_graph_is_recorded_once_with_its_place_and_seconds(runtime: Runtime):
    runtime.watch.where = "step 1"
    runtime.compiles("a", 3.0)
    runtime.watch.where = "step 2"
    runtime.watch.poll()
    runtime.compiles("b", 1.0)
    found = [(graph.name, graph.where, graph.seconds, graph.bytes) for graph in runtime.watch.met]
    assert found == [("a", "step 1", 3.0, 100), ("b", "step 2", 1.0, 100)]


def test_two_graphs_between_polls_share_their_seconds(runtime: Runtime):
    runtime.files["a"] = 1
    runtime.count, runtime.seconds = 1, 2.0
    runtime.compiles("b", 4.0)
    assert [graph.seconds for graph in runtime.watch.met] == [3.0, 3.0]


def test_a_graph_from_before_the_start_is_not_new():
    files = {"old": 1}
    counts = [(4, 9.0), (5, 10.0)]
    watch = GraphWatch(lambda: counts[0], lambda: dict(files))
    watch.start()
    files["new"] = 1
    del counts[0]
    watch.poll()
    assert [graph.name for graph in watch.met] == ["new"]
    assert watch.met[0].seconds == 1.0


@pytest.mark.parametrize("policy", ["warn", "note"])
def test_a_graph_that_was_not_expected_is_a_miss(runtime: Runtime, capsys: pytest.CaptureFixture[str], policy):
    runtime.watch.expect({"a"}, 10.0, policy)
    runtime.compiles("a")
    runtime.watch.where = "step 7, 24 x 40 tokens"
    runtime.compiles("b")
    use = runtime.watch.use(readable=False)
    assert (use.hits, use.misses, use.seconds_saved) == (1, 1, 0.0)
    assert [(graph.name, graph.where) for graph in use.new] == [("b", "step 7, 24 x 40 tokens")]
    assert ("24 x 40" in capsys.readouterr().out) == (policy == "warn")


def test_an_unexpected_graph_fails_with_the_policy_fail(runtime: Runtime):
    runtime.watch.expect({"a"}, 10.0, "fail")
    runtime.compiles("a")
    runtime.watch.where = "step 7, 24 x 40 tokens"
    with pytest.raises(CompileError, match=r"step 7, .*graph b .*=warn"):
        runtime.compiles("b")


def test_graphs_compiled_before_the_expectation_are_judged_too(runtime: Runtime):
    runtime.compiles("b")
    with pytest.raises(CompileError, match="graph b"):
        runtime.watch.expect({"a"}, 10.0, "fail")


def test_graphs_read_from_the_cache_are_hits_and_save_their_seconds(runtime: Runtime, golden: Golden):
    runtime.watch.expect({"a", "b"}, 30.0, "fail")
    runtime.reads()
    runtime.reads()
    use = runtime.watch.use(readable=True)
    assert (use.hits, use.misses, use.compile_seconds, use.seconds_saved) == (2, 0, 1.0, 29.0)
    golden(use.sentence)
