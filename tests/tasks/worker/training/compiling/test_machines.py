"""Warmup, then training, on two machines with four NeuronCores each: eight workers as threads, by upstream's rules.

The compiler is a fake. How it is started, what it is given and where its graphs go is real.
"""

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import WarmupInputs
from tasks.contracts.references import CompileRef
from tasks.foundation.errors import CompileError
from tasks.worker.devices.base import Graph, GraphWatch
from tasks.worker.devices.precompile import PARALLEL_COMPILE, AheadCompiler, GraphCompile, list_graphs
from tasks.worker.process.job import Rank
from tasks.worker.training import compile_ahead, compile_cache
from tests.support.fakes.neuron.neuron_tools import COMPILER
from tests.support.fakes.neuron.upstream_neuron import after_import
from tests.support.workspace.jobs import make_job, tiny_config

MACHINES, CORES = 2, 4
RANKS = [Rank(index, MACHINES * CORES, index % CORES, CORES) for index in range(MACHINES * CORES)]
GRAPHS = ("MODULE_1+a", "MODULE_2+a")
PROGRAM = {"program": 1}


class CountingStore(DirectoryStore):
    """Counts how often a thread reads or looks for something, by the thread's name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()

    def _count(self) -> None:
        self.asked[threading.current_thread().name] += 1

    def read(self, key: str) -> bytes:
        self._count()
        return super().read(key)

    def exists(self, key: str) -> bool:
        self._count()
        return super().exists(key)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        self._count()
        return super().local(key, names)


def by_torchrun(rank: Rank, port: int = 29500) -> dict[str, str]:
    """What torchrun adds to a worker's environment."""
    return {
        "RANK": str(rank.index),
        "WORLD_SIZE": str(rank.world),
        "GROUP_RANK": str(rank.index // rank.local_world),
        "LOCAL_RANK": str(rank.local),
        "LOCAL_WORLD_SIZE": str(rank.local_world),
        "TORCHELASTIC_RUN_ID": "job",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": str(port),
    }


def accelerator(rank: Rank, folder: Path, compiler: AheadCompiler = PARALLEL_COMPILE) -> Any:
    """The part of an accelerator that compilation uses; the workers of a machine share a folder."""
    graphs = folder / f"machine-{rank.index // CORES}"
    graphs.mkdir(exist_ok=True)
    watch = GraphWatch(lambda: (0, 0.0), lambda: list_graphs(graphs))
    return SimpleNamespace(
        name="xla",
        reads_graphs=True,
        ahead_compiler=compiler,
        graph_folder=graphs,
        graphs=watch,
        variables={},
        rank=rank,
    )


def on_all(work: Callable[[Rank], Any]) -> list[Any]:
    """What `work` returns for each worker, all at once, each in a thread with the worker's number as name.

    The first error is raised at once; the others would wait for that worker for ever.
    """
    ended: queue.Queue[tuple[int, Any]] = queue.Queue()

    def put(rank: Rank) -> None:
        try:
            ended.put((rank.index, work(rank)))
        except BaseException as error:
            ended.put((rank.index, error))

    for rank in RANKS:
        threading.Thread(target=put, args=(rank,), name=str(rank.index), daemon=True).start()
    results: dict[int, Any] = {}
    for _ in RANKS:
        index, result = ended.get()
        if isinstance(result, BaseException):
            raise result
        results[index] = result
    return [results[rank.index] for rank in RANKS]


@pytest.mark.shows("compiled once")
def test_graphs_are_compiled_once_and_fetched_once_on_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = CountingStore(tmp_path / "workspace")
    compiled: list[Path] = []
    collected: list[Path] = []

    def compile_all(command: Sequence[str], cache: Path, *_: Any) -> tuple[GraphCompile, ...]:
        compiled.append(cache)
        for name in GRAPHS:
            module = cache / COMPILER / name
            module.mkdir(parents=True)
            for file in ("model.neff", "model.done"):
                (module / file).write_text(name)
        return tuple(GraphCompile(name, True, 1.0) for name in GRAPHS)

    def collect_all(command: Sequence[str], cache: Path, *_: Any) -> frozenset[str]:
        collected.append(cache)
        return frozenset(GRAPHS)

    compiler = AheadCompiler(compile_all, collect_all, list_graphs)
    prepare(monkeypatch)

    def warm_up(folder: Path, attempt: int) -> Callable[[Rank], CompileRef | None]:
        folder.mkdir()

        def work(rank: Rank) -> CompileRef | None:
            job = make_job(store, tiny_config(), WarmupInputs(rows=(), parent=None), attempt=attempt, rank=rank)
            device = accelerator(rank, folder, compiler)
            with compile_ahead.provide_graphs(job, device, None, None) as session:  # type: ignore[arg-type]
                assert list(list_graphs(device.graph_folder)) == list(GRAPHS), "when the device is opened all are there"
                return session.publish() if rank.is_main else None

        return work

    ref, *_ = on_all(warm_up(tmp_path / "first", 1))
    assert [path.name for path in compiled] == ["machine-0"]
    assert [path.name for path in collected] == ["machine-1"], "it takes part in the trial run"
    assert {name for name, asked in store.asked.items() if asked} == {"0", "4"}, "the others ask their machine"

    again, *_ = on_all(warm_up(tmp_path / "second", 2))
    assert (again, len(compiled), len(collected)) == (ref, 1, 1), "nothing is left to compile"

    store.asked.clear()
    devices = [accelerator(rank, tmp_path) for rank in RANKS]
    on_all(lambda rank: compile_cache.expect(devices[rank.index], store, ref, "fail"))
    asked = sorted(store.asked.values())
    assert len(asked) == MACHINES, "one worker of each machine fetches, and the others wait for it"
    for device in devices:
        assert list(list_graphs(device.graph_folder)) == list(GRAPHS)


@pytest.mark.parametrize("complete", [False, True], ids=["in-time", "late"])
def test_a_machine_whose_workers_meet_other_graphs_is_refused(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when the number of a worker is a constant of its program; also where all is compiled before it looks."""
    store = DirectoryStore(tmp_path / "workspace")
    compiler = PARALLEL_COMPILE._replace(collect=lambda *_: frozenset([GRAPHS[0], "MODULE_9+a"]))
    prepare(monkeypatch)
    rank = RANKS[CORES]
    device = accelerator(rank, tmp_path, compiler)
    for name in GRAPHS:
        (device.graph_folder / COMPILER / name).mkdir(parents=True)
    met = [Graph(name, "ahead of time", 1.0, 1) for name in GRAPHS]
    compile_cache.publish(store, PROGRAM, compile_cache.NOTHING, met, device.graph_folder, complete)
    job, key = (
        make_job(store, tiny_config(), WarmupInputs(rows=(), parent=None), rank=rank),
        compile_cache.key_of(PROGRAM),
    )
    compile_ahead._signal(job, key, compile_ahead.FOUND, compile_cache.NOTHING.to_json())
    compile_ahead._signal(job, key, compile_ahead.COMPILED)
    with (
        pytest.raises(CompileError, match=r"1 graph .*MODULE_9\+a"),
        compile_ahead.provide_graphs(job, device, None, None),  # type: ignore[arg-type]
    ):
        pytest.fail("it opens its device")


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program, workers who meet somewhere, and nobody who waits for long."""
    monkeypatch.setattr(compile_ahead, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(compile_cache, "ingredients", lambda *_: PROGRAM)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")


@pytest.mark.shows("compiler's cores")
def test_the_compilers_workers_find_their_cores_by_upstreams_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker that has imported torch-neuronx is bound to its core; what it starts must not be."""
    given: dict[int, dict[str, str]] = {}
    variables = {"NEURON_CC_FLAGS": "-O1"}
    for rank in (rank for rank in RANKS if rank.local == 0):
        outer = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **by_torchrun(rank)}
        monkeypatch.setattr(os, "environ", dict(outer))
        job = make_job(DirectoryStore(tmp_path), tiny_config(), WarmupInputs(rows=(), parent=None), rank=rank)
        spoilt = after_import(monkeypatch, outer)
        assert spoilt["NEURON_RT_VISIBLE_CORES"] == "0"
        monkeypatch.setattr(os, "environ", spoilt)

        def note(
            command: Sequence[str], cache: Path, work: Path, environment: Mapping[str, str], *_: Any, rank: Rank = rank
        ) -> tuple[GraphCompile, ...]:
            given[rank.index] = dict(environment)
            return ()

        compile_ahead._compile(job, PARALLEL_COMPILE._replace(compile=note), variables, tmp_path)
        monkeypatch.undo()
    assert sorted(given) == [0, CORES]
    for environment in given.values():
        assert environment["NEURON_CC_FLAGS"] == "-O1"
        assert not [name for name in environment if name.startswith(("NEURON_RT_", "NEURON_PJRT_", "PJRT_", "TORCHEL"))]
    for rank in RANKS:
        machine = given[rank.index - rank.local]
        inner = after_import(monkeypatch, {**machine, **by_torchrun(rank, port=29501)})
        assert inner["NEURON_RT_VISIBLE_CORES"] == str(rank.local), "no core is taken twice"
        assert (inner["NEURON_PJRT_PROCESS_INDEX"], inner["NEURON_PJRT_WORLD_SIZE"]) == (str(rank.index), "8")
        assert inner["PJRT_LOCAL_PROCESS_COUNT"] == str(CORES)
