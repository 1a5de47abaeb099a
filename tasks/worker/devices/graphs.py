"""Counts the graphs that a device compiled in this process, and finds unexpected ones.

Devices report their compilations; the expected graphs come from the manifest of the compile cache.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from tasks.contracts.usage import GraphUse, NewGraph
from tasks.foundation.errors import CompileError

OnNewGraph = Literal["fail", "warn", "note"]


@dataclass(frozen=True)
class Graph:
    """One compiled graph: the runtime's hash, the work that first needed it, seconds to compile, bytes of its file."""

    name: str
    where: str
    seconds: float
    bytes: int


@dataclass
class GraphWatch:
    """Checks after each cut whether a graph was compiled.

    Attributes:
        counted: returns the number of compilations and their seconds since the process started.
        listed: returns the compiled graphs on disk, name -> bytes.
        where: the current work for messages, e.g. `step 12, 24 x 40 tokens`.
    """

    counted: Callable[[], tuple[int, float]]
    listed: Callable[[], dict[str, int]]
    where: str = "start"
    met: list[Graph] = field(default_factory=list)
    _there: frozenset[str] = frozenset()
    _count: int = 0
    _seconds: float = 0.0
    _silent: int = 0
    _expected: frozenset[str] | None = None
    _saved: float = 0.0
    _on_new: OnNewGraph = "warn"
    _new: list[NewGraph] = field(default_factory=list)

    def start(self) -> None:
        """Start to count; earlier compilations don't count."""
        self._there = frozenset(self.listed())
        self._count, self._seconds = self.counted()

    def forget(self) -> None:
        """Start again after work that does not belong to the stage."""
        self.poll()
        self.met, self._new, self._silent, self._expected = [], [], 0, None
        self.start()

    def expect(self, names: Collection[str], seconds: float, on_new: OnNewGraph) -> None:
        """Expect only these graphs from now on; they took `seconds` to compile."""
        self._expected, self._saved, self._on_new = frozenset(names), seconds, on_new
        for graph in self.met:
            self._judge(graph)

    def poll(self) -> None:
        """Record the compilations since the last call.

        Raises:
            CompileError: a graph is unexpected, and `expect` was called with `fail`.
        """
        count, seconds = self.counted()
        if count == self._count:
            return
        known = self._there | {graph.name for graph in self.met}
        fresh = {name: size for name, size in self.listed().items() if name not in known}
        self._silent += count - self._count - len(fresh)  # loaded from an earlier compilation: no new file
        each = (seconds - self._seconds) / (count - self._count)
        self._count, self._seconds = count, seconds
        for name, size in sorted(fresh.items()):
            graph = Graph(name, self.where, each, size)
            self.met.append(graph)
            self._judge(graph)

    def use(self, readable: bool) -> GraphUse:
        """Return the counts. `readable`: the runtime loads compiled graphs, so expected graphs saved time."""
        saved = max(0.0, self._saved - self._seconds) if readable else 0.0
        return GraphUse(
            hits=self._silent + len(self.met) - len(self._new),
            misses=len(self._new),
            compile_seconds=round(self._seconds, 3),
            seconds_saved=round(saved, 3),
            readable=readable,
            compiled=tuple(graph.name for graph in self.met),
            new=tuple(self._new),
        )

    def _judge(self, graph: Graph) -> None:
        if self._expected is None or graph.name in self._expected:
            return
        self._new.append(NewGraph(name=graph.name, where=graph.where, seconds=round(graph.seconds, 3)))
        sentence = (
            f"{graph.where}: graph {graph.name} was compiled in {graph.seconds:.2f} s, but warmup did not "
            "compile it. The cause is a batch of another shape, or a setting that changed since"
        )
        if self._on_new == "fail":
            raise CompileError(f"{sentence}. Run the span again, or let it pass with --set train.on_new_graph=warn")
        if self._on_new == "warn":
            print(f"warning: {sentence}", flush=True)
