"""Ahead-of-time compilation by `neuron_parallel_compile`, and cleanup of its cache.

The tool runs a command without executing its graphs, then compiles them in parallel, or only collects them. The report
and the cache decide about success. The exit status does not: it is the number of failed graphs, and 256 is read as 0.
"""

import re
import shlex
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from tasks.foundation.errors import CodeError, CompileError, ConfigError
from tasks.worker.devices.neuron_tools import explain, find_tool, start_tool, tail
from tasks.worker.devices.xla_environment import NEURON_CACHE, NEURON_FLAGS

TOOL = "neuron_parallel_compile"
NAMED_GRAPHS = 3
LOG_LINES = 10
TAIL_LINES = 40

# The tool also takes these options, and their abbreviations, from the command that follows it.
_OWN_OPTIONS = (
    *("--command", "--num_parallel", "--node_id", "--world_size", "--static_schedule", "--analyze-output"),
    *("--analyze-verbosity", "--parallel_compile_workdir", "--log_level", "--help"),
)
_REPORTS = "neuron_parallel_compile_results_*.json"  # not total_neuron_... in the same folder
_COLLECTED = re.compile(r"Extracting graphs \([^)]*?(MODULE_[^/)]+)")
_NOTHING_TO_DO = "no todo hlos found"
_TRIAL_FAILED = "error in the training script"


class GraphCompile(NamedTuple):
    """One compiled or failed graph; its name is MODULE_<hash of the graph>+<hash of the flags>."""

    name: str
    compiled: bool
    seconds: float


class AheadCompiler(NamedTuple):
    """Means to compile the graphs of a trial run before the device is opened.

    Attributes:
        compile: as `precompile`, on the first machine.
        collect: as `collect`, on the others, which take part in the trial run.
        listed: as `list_graphs`.
    """

    compile: Callable[..., tuple[GraphCompile, ...]]
    collect: Callable[..., frozenset[str]]
    listed: Callable[[Path], dict[str, int]]


class _Entry(BaseModel):
    status: bool
    compile_time: float


class _Report(BaseModel):
    compilation_summary: dict[str, int]  # true and false -> graphs; a count of 0 is absent
    compilation_report: dict[str, _Entry]


class _Finished(NamedTuple):
    code: int
    report: str | None
    collected: set[str]
    idle: bool
    trial_failed: bool
    tail: str


def precompile(
    command: Sequence[str],
    cache: Path,
    workdir: Path,
    environment: Mapping[str, str],
    jobs: int | None,
    say: Callable[[str], None],
) -> tuple[GraphCompile, ...]:
    """Collect the graphs of `command`, compile the missing ones into `cache`, and return these.

    Args:
        command: the trial run. It starts in an empty folder, so its paths must be absolute.
        workdir: for private folders of this call, deleted afterwards.
        environment: all variables of the tool and the command. Not this process's environment after the import of
            torch-neuronx, which binds a process and its children to one core and rank.
        jobs: graphs compiled in parallel; None: the tool chooses by the host's memory.
        say: called with every line of output.

    Raises:
        ConfigError: the tool is not installed, or NEURON_CC_FLAGS names another cache.
        CodeError: the tool would take an argument of `command` as its own.
        CompileError: the trial run failed, a graph did not compile, or the report is missing, unreadable, or
            contradicts the cache.
    """
    try:
        finished = _run_in_cache("collect-and-compile", command, cache, workdir, environment, jobs, say)
        return _judge(finished, shlex.join(command), cache)
    finally:
        clear_failed(cache)


def collect(
    command: Sequence[str], cache: Path, workdir: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> frozenset[str]:
    """Return the names of the graphs of `command` that `cache` lacks, uncompiled; args as for `precompile`."""
    finished = _run_in_cache("collect", command, cache, workdir, environment, None, say)
    if finished.trial_failed or finished.code != 0:
        raise CompileError(_trial_failed(shlex.join(command), finished))
    return frozenset(finished.collected)


def clear_failed(cache: Path) -> None:
    """Remove failed graphs, which the tool would never try again."""
    for path in _modules(cache):
        if (path / "model.log").exists() and not _is_complete(path):
            shutil.rmtree(path)


def clear_stale_locks(cache: Path) -> None:
    """Remove the locks of killed compilers; call this only while no compiler runs."""
    for path in cache.rglob("*.lock"):
        path.unlink(missing_ok=True)


def list_graphs(cache: Path) -> dict[str, int]:
    """Return name -> bytes of the complete graphs; for a repeated name the later compiler's graph."""
    return {path.name: (path / "model.neff").stat().st_size for path in _modules(cache) if _is_complete(path)}


def _run_in_cache(
    what: str,
    command: Sequence[str],
    cache: Path,
    workdir: Path,
    environment: Mapping[str, str],
    jobs: int | None,
    say: Callable[[str], None],
) -> _Finished:
    environment = {**environment, NEURON_CACHE: str(cache.absolute())}
    environment["NEURON_PARALLEL_COMPILE_DUMP_RESULTS"] = "1"
    # It would hide a trial run that failed half-way.
    environment.pop("NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE", None)
    _refuse_other_cache(environment)
    _refuse_taken_arguments(command)
    clear_stale_locks(cache)
    clear_failed(cache)
    workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workdir.absolute(), prefix="compile-") as folder:
        return _run(what, command, Path(folder), environment, jobs, say)


def _run(
    what: str,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    jobs: int | None,
    say: Callable[[str], None],
) -> _Finished:
    private, current = folder / "graphs", folder / "current"
    current.mkdir()
    options = ["--command", what, "--parallel_compile_workdir", str(private)]
    options += [] if jobs is None else ["--num_parallel", str(jobs)]
    last: deque[str] = deque(maxlen=TAIL_LINES)
    collected: set[str] = set()
    idle = trial_failed = False
    tool = find_tool(TOOL, environment.get("PATH"))
    with start_tool([tool, *options, *command], environment, current, merge=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            line = line.rstrip("\n")
            say(line)
            last.append(line)
            collected.update(_COLLECTED.findall(line))
            idle = idle or _NOTHING_TO_DO in line.lower()
            trial_failed = trial_failed or _TRIAL_FAILED in line
        code = process.wait()
    reports = sorted(current.glob(_REPORTS), key=lambda path: path.stat().st_mtime_ns)
    report = reports[-1].read_text(errors="replace", encoding="utf-8") if reports else None
    return _Finished(code, report, collected, idle, trial_failed, tail("\n".join(last), TAIL_LINES))


def _judge(finished: _Finished, command: str, cache: Path) -> tuple[GraphCompile, ...]:
    if finished.trial_failed:
        raise CompileError(_trial_failed(command, finished))
    if finished.report is None:
        if finished.code != 0 or not finished.idle or finished.collected:
            raise CompileError(
                f"{TOOL} exited with {finished.code} and wrote no report, so nothing is known of the graphs of: "
                f"{command}\nIts last lines:\n{finished.tail}"
            )
        return ()
    graphs = _read(finished.report)
    if failed := [graph.name for graph in graphs if not graph.compiled]:
        raise CompileError(_describe(failed, len(graphs), cache))
    if missing := sorted(({graph.name for graph in graphs} | finished.collected) - list_graphs(cache).keys()):
        raise CompileError(
            f"{len(missing)} of the graphs collected are not in {cache}, though {TOOL} names no failure: "
            f"{_first(missing)}. A compiler was killed (memory? then lower compiler.parallel_jobs), or another "
            f"program writes to the same cache. Last lines:\n{finished.tail}"
        )
    return graphs


def _trial_failed(command: str, finished: _Finished) -> str:
    return f"the trial run that collects graphs failed: {command}\nIts last lines:\n{finished.tail}"


def _read(text: str) -> tuple[GraphCompile, ...]:
    try:
        report = _Report.model_validate_json(text)
    except ValidationError as error:
        raise CompileError(
            f"the report of {TOOL} is malformed, so no graph counts as compiled: {explain(error)}"
        ) from error
    entries = report.compilation_report
    counted = {key: report.compilation_summary.get(key, 0) for key in ("true", "false")}
    listed = {key: sum(entry.status is (key == "true") for entry in entries.values()) for key in counted}
    if counted != listed:
        raise CompileError(
            f"the report of {TOOL} contradicts itself: its summary counts {counted['true']} compiled and "
            f"{counted['false']} failed graphs, its list {listed['true']} and {listed['false']}"
        )
    return tuple(
        GraphCompile(_graph_name(path), entry.status, round(entry.compile_time, 3))
        for path, entry in sorted(entries.items())
    )


def _describe(failed: Sequence[str], total: int, cache: Path) -> str:
    """Describe failed graphs, with the last lines of the compiler's log for the first few."""
    logs = {path.name: path / "model.log" for path in _modules(cache)}
    parts = []
    for name in failed[:NAMED_GRAPHS]:
        log = logs.get(name)
        text = log.read_text(errors="replace", encoding="utf-8") if log is not None and log.exists() else ""
        parts.append(f"{name}:\n{tail(text, LOG_LINES) if text else '(no model.log)'}")
    more = f"\nand {len(failed) - NAMED_GRAPHS} more" if len(failed) > NAMED_GRAPHS else ""
    return f"{len(failed)} of {total} graphs did not compile:\n" + "\n".join(parts) + more


def _refuse_other_cache(environment: Mapping[str, str]) -> None:
    if "--cache_dir" in environment.get(NEURON_FLAGS, ""):
        raise ConfigError(
            f"{NEURON_FLAGS} has --cache_dir, which overrides {NEURON_CACHE}={environment[NEURON_CACHE]}, so the "
            "graphs would go elsewhere; remove it"
        )


def _refuse_taken_arguments(command: Iterable[str]) -> None:
    for argument in command:
        name = argument.partition("=")[0]
        if name == "-h" or (len(name) > 2 and any(option.startswith(name) for option in _OWN_OPTIONS)):
            raise CodeError(f"{TOOL} would read {argument!r} of the trial run's command as its own option; rename it")


def _modules(cache: Path) -> list[Path]:
    """Return the folders of all graphs, older compilers first."""
    return sorted(cache.glob("neuronxcc-*/MODULE_*"), key=lambda path: (_version(path.parent.name), path.name))


def _version(folder: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.partition("+")[0]))


def _is_complete(module: Path) -> bool:
    neff = module / "model.neff"
    return (module / "model.done").exists() and neff.exists() and neff.stat().st_size > 0


def _graph_name(path: str) -> str:
    """Return the graph's name. Raises CompileError for a path outside a compile cache."""
    name = next((part for part in PurePosixPath(path).parts if part.startswith("MODULE_")), None)
    if name is None:
        raise CompileError(
            f"{TOOL} names the graph {path!r}, which is not a path of a compile cache (no MODULE_ folder)"
        )
    return name


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_GRAPHS} more" if len(names) > NAMED_GRAPHS else ""
    return ", ".join(names[:NAMED_GRAPHS]) + more


PARALLEL_COMPILE = AheadCompiler(precompile, collect, list_graphs)
