"""Ahead-of-time compilation by TorchNeuron's compile-only mode: a trial run whose graphs are compiled, never executed.

TorchNeuron compiles each graph at its first use, into its own cache. So the trial run fills the folder by itself, and
the files decide about success together with its exit status: this mode writes no report.
"""

import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tasks.foundation.errors import CompileError
from tasks.worker.devices.neuron_tools import start_tool, tail
from tasks.worker.devices.precompile import TAIL_LINES, AheadCompiler, GraphCompile

SWITCH = "TORCH_NEURONX_COMPILE_ONLY"


def compile_only(
    command: Sequence[str],
    cache: Path,
    workdir: Path,
    environment: Mapping[str, str],
    jobs: int | None,
    say: Callable[[str], None],
) -> tuple[GraphCompile, ...]:
    """Run `command` in compile-only mode, and return the graphs that `cache` lacked; args as for `precompile`.

    Args:
        workdir: not used; nothing is written but the graphs.
        jobs: not used; TorchNeuron compiles one graph at a time in each process.

    Raises:
        CompileError: the trial run failed, or compiled no graph.
    """
    before, began = list_neffs(cache), time.monotonic()
    last: deque[str] = deque(maxlen=TAIL_LINES)
    with start_tool(command, {**environment, SWITCH: "1"}, merge=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))
            last.append(line)
        code = process.wait()
    end = f"Its last lines:\n{tail(''.join(last), TAIL_LINES)}"
    if code != 0:
        raise CompileError(f"the trial run that compiles graphs exited with {code}: {shlex.join(command)}\n{end}")
    now = list_neffs(cache)
    if not now:
        raise CompileError(
            f"the trial run wrote no graph to {cache}, so this TorchNeuron does not know {SWITCH} or keeps its graphs "
            f"elsewhere: {shlex.join(command)}\n{end}"
        )
    fresh = sorted(now.keys() - before.keys())
    seconds = round((time.monotonic() - began) / max(1, len(fresh)), 3)  # the mode reports none of a single graph
    return tuple(GraphCompile(name, compiled=True, seconds=seconds) for name in fresh)


def collect_only(
    command: Sequence[str], cache: Path, workdir: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> frozenset[str]:
    """Take part in the trial run on another machine, which compiles the graphs too, and return their names."""
    return frozenset(graph.name for graph in compile_only(command, cache, workdir, environment, None, say))


def list_neffs(cache: Path) -> dict[str, int]:
    """Return name -> bytes: TorchNeuron writes one file a graph, named by a hash, below two levels of folders."""
    return {path.name: path.stat().st_size for path in cache.rglob("*.neff")}


COMPILE_ONLY = AheadCompiler(compile_only, collect_only, list_neffs)
