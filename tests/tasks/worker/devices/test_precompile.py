import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.foundation.errors import CodeError, CompileError, ConfigError, StageError
from tasks.worker.devices.precompile import (
    GraphCompile,
    clear_failed,
    clear_stale_locks,
    collect,
    list_graphs,
    precompile,
)
from tests.support.fakes.neuron.neuron_tools import COMPILER, FakeTools, sample

TRIAL = [sys.executable, "-IS", "-c"]
FINE = [*TRIAL, "print('trial step 1')"]
RECORDED = """
import sys
open("neuron_parallel_compile_results_1767990526.0.json", "w").write({report!r})
open("total_neuron_parallel_compile_results_1767990526.1.json", "w").write("{{}}")
sys.exit({code})
"""


class Call:
    """One call with its folders, and what it passed to the tool."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.workdir, self.log = folder / "cache", folder / "work", folder / "log"
        self.lines: list[str] = []

    def run(self, command=FINE, jobs: int | None = None, **environment: str) -> tuple[GraphCompile, ...]:
        environment = {**os.environ, "FAKE_LOG": str(self.log)} | environment
        return precompile(command, self.cache, self.workdir, environment, jobs, self.lines.append)

    def refusal(self, command=FINE, kind: type[StageError] = CompileError, **environment: str) -> str:
        with pytest.raises(kind) as error:
            self.run(command, None, **environment)
        return str(error.value)

    def given(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> FakeTools:
    tools = FakeTools(tmp_path / "bin", monkeypatch)
    tools.add_parallel_compile()
    return tools


@pytest.fixture
def call(fakes, tmp_path) -> Call:
    return Call(tmp_path)


def module(cache: Path, name: str, *files: str, compiler: str = COMPILER) -> Path:
    """A folder of the cache with files that hold their own names."""
    folder = cache / compiler / name
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text(file)
    return folder


def test_the_report_names_every_graph_compiled(call):
    graphs = call.run(FAKE_GRAPHS="3")
    assert [graph.name for graph in graphs] == [f"MODULE_0000{number}+d41d8cd9" for number in range(3)]
    assert {(graph.compiled, graph.seconds) for graph in graphs} == {(True, 1.25)}
    assert list(list_graphs(call.cache)) == [graph.name for graph in graphs]


def test_the_trial_runs_and_its_output_is_passed_on(call):
    call.run([*TRIAL, "import os; print('graphs only:', os.environ['NEURON_EXTRACT_GRAPHS_ONLY'])"])
    assert call.lines[0] == "graphs only: 1"
    assert call.lines[-1].endswith("Total failed compilations: 0")


def test_the_tool_is_given_private_folders_the_cache_and_the_jobs(call):
    call.run(jobs=3, NEURON_COMPILE_CACHE_URL="/elsewhere", A="b")
    call.run(A="c")
    given, later = call.given()
    assert later["own"]["num_parallel"] is None, "the tool chooses"
    assert (given["own"]["command"], given["own"]["num_parallel"]) == ("collect-and-compile", 3)
    assert given["command"] == FINE
    private, current = Path(given["own"]["parallel_compile_workdir"]), Path(given["cwd"])
    assert private.is_relative_to(call.workdir)
    assert current.is_relative_to(call.workdir)
    assert private != current
    assert list(call.workdir.iterdir()) == []
    assert given["environment"]["NEURON_PARALLEL_COMPILE_DUMP_RESULTS"] == "1"
    assert given["environment"]["NEURON_COMPILE_CACHE_URL"] == str(call.cache)
    assert given["environment"]["A"] == "b"


def test_two_calls_at_once_share_no_folder(call, tmp_path):
    other = Call(tmp_path / "other")
    other.workdir, other.log = call.workdir, tmp_path / "other-log"
    # Each trial waits until both have begun.
    meet = (
        "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); deadline = time.time() + 30\n"
        "while not pathlib.Path(sys.argv[2]).exists(): assert time.time() < deadline; time.sleep(0.01)"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(call.run, [*TRIAL, meet, a, b]), pool.submit(other.run, [*TRIAL, meet, b, a])]
        assert all(len(run.result()) == 2 for run in runs)
    first, second = call.given()[0], other.given()[0]
    assert first["own"]["parallel_compile_workdir"] != second["own"]["parallel_compile_workdir"]
    assert first["cwd"] != second["cwd"]


def test_a_cache_that_has_every_graph_compiles_nothing(call):
    call.run()
    assert call.run() == ()
    assert len(list_graphs(call.cache)) == 2


def test_graphs_can_be_collected_for_another_machine_to_compile(call):
    environment = {**os.environ, "FAKE_LOG": str(call.log)}
    names = collect(FINE, call.cache, call.workdir, environment, call.lines.append)
    assert names == {"MODULE_00000+d41d8cd9", "MODULE_00001+d41d8cd9"}
    assert call.given()[0]["own"]["command"] == "collect"
    assert list_graphs(call.cache) == {}
    with pytest.raises(CompileError, match="no such span"):
        collect([*TRIAL, "raise SystemExit('no such span')"], call.cache, call.workdir, environment, print)


@pytest.mark.shows("compiler's report")
def test_256_failures_are_an_error_in_spite_of_exit_code_0(call):
    message = call.refusal(FAKE_GRAPHS="256", FAKE_FAIL="256")
    assert message.startswith("256 of 256 graphs")
    assert "[NCC_EVRF009] MODULE_00002+d41d8cd9" in message
    assert "MODULE_00003" not in message
    assert message.endswith("and 253 more")
    assert "line 29 of MODULE_00000" in message
    assert "line 20 of MODULE_00000" not in message


def test_a_failed_graph_is_tried_again_next_time(call):
    call.refusal(FAKE_FAIL="1")
    assert list(call.cache.rglob("model.log")) == []
    assert list(list_graphs(call.cache)) == ["MODULE_00001+d41d8cd9"]
    assert [graph.name for graph in call.run()] == ["MODULE_00000+d41d8cd9"]


def test_failures_and_locks_of_earlier_runs_are_cleared_first(call):
    module(call.cache, "MODULE_00000+d41d8cd9", "model.hlo_module.pb", "model.log")
    stale = module(call.cache, "MODULE_00001+d41d8cd9", "model.hlo_module.pb", "model.hlo_module.pb.lock")
    assert len(call.run()) == 2
    assert not (stale / "model.hlo_module.pb.lock").exists()


@pytest.mark.shows("compiler's report")
def test_a_trial_that_fails_is_an_error_with_its_last_lines(call):
    message = call.refusal([*TRIAL, "print('loading', flush=True); raise SystemExit('no such span')"])
    assert message.startswith("the trial run")
    assert "loading\nno such span\n" in message
    assert list_graphs(call.cache) == {}


def test_the_users_switch_to_ignore_failed_trials_is_dropped(call, monkeypatch):
    monkeypatch.setenv("NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE", "1")
    call.run()
    assert "NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE" not in call.given()[0]["environment"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("silent", ["exited with 0 and wrote no report", "got exception: out of files"]),
        ("malformed", ["the report of neuron_parallel_compile is malformed, so no graph counts as compiled"]),
        ("disagree", ["contradicts itself: its summary counts 3 compiled and 0 failed graphs, its list 2 and 1"]),
        ("killed", ["1 of the graphs collected are not in", "MODULE_00000+d41d8cd9. A compiler was killed"]),
        ("lying", ["MODULE_00000+d41d8cd9"]),
    ],
)
def test_a_wrong_report_is_an_error(call, mode, words):
    message = call.refusal(FAKE_MODE=mode, FAKE_GRAPHS="3", FAKE_FAIL="1" if mode == "disagree" else "0")
    for word in words:
        assert word in message


def test_a_report_as_recorded(call, fakes, golden):
    report = sample("compile-report.json").replace("/var/tmp/neuron-compile-cache", str(call.cache))
    fakes.write("neuron_parallel_compile", RECORDED.format(report=report, code=1))
    message = call.refusal()
    golden(message)

    names = ("MODULE_11017138412486390216+d41d8cd9", "MODULE_1787152174034049571+d41d8cd9")
    tree = json.loads(report)
    tree["compilation_summary"] = {"true": 2}  # a count of none is left out
    tree["compilation_report"].popitem()
    for name in names:
        module(call.cache, name, "model.done", "model.neff")
    fakes.write("neuron_parallel_compile", RECORDED.format(report=json.dumps(tree), code=0))
    assert [(graph.name, graph.seconds) for graph in call.run()] == [(names[0], 61.704), (names[1], 12.032)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.pop("compilation_summary"), "compilation_summary: Field required"),
        (lambda tree: next(iter(tree["compilation_report"].values())).pop("status"), "status: Field required"),
        (lambda tree: tree["compilation_summary"].pop("false"), "contradicts itself"),
        (
            lambda tree: tree["compilation_report"].update({"/x/graph": tree["compilation_report"].popitem()[1]}),
            "names the graph '/x/graph', which is not a path of a compile cache",
        ),
    ],
    ids=["no summary", "no status", "no count", "no module"],
)
def test_a_report_of_another_shape_is_an_error(call, fakes, change, words):
    tree = json.loads(sample("compile-report.json"))
    change(tree)
    fakes.write("neuron_parallel_compile", RECORDED.format(report=json.dumps(tree), code=0))
    assert words in call.refusal()


def test_no_report_after_collected_graphs_is_an_error(call, fakes):
    log = "Extracting graphs (/c/neuronxcc-2/MODULE_1+a/model.hlo.pb) for later\nNo todo hlos found in cache"
    fakes.write("neuron_parallel_compile", f"print({log!r})")
    assert "wrote no report" in call.refusal()


def test_another_cache_in_the_flags_is_refused(call):
    message = call.refusal(kind=ConfigError, NEURON_CC_FLAGS="-O1 --cache_dir=/tmp/x")
    assert "NEURON_CC_FLAGS has --cache_dir" in message
    assert not call.log.exists()


@pytest.mark.parametrize("argument", ["--world_size=2", "--log_level", "--world", "-h"])
def test_arguments_that_the_tool_would_read_are_refused(call, argument):
    assert f"would read '{argument}'" in call.refusal([*FINE, argument], kind=CodeError)


@pytest.mark.parametrize("argument", ["--spec", "-m", "--", "--nproc_per_node=2", "--node_rank=1", "warmup"])
def test_other_arguments_reach_the_trial(call, argument):
    call.run([*FINE, argument])
    assert call.given()[0]["command"][-1] == argument


def test_a_missing_tool_is_a_configuration_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = Call(tmp_path).refusal(kind=ConfigError)
    assert "neuron_parallel_compile is" in message
    assert "torch-neuronx" in message


def test_only_failed_graphs_are_cleared(tmp_path):
    done = ("model.hlo_module.pb", "model.neff", "model.done")
    kept = [
        module(tmp_path, "MODULE_1+a", *done),
        module(tmp_path, "MODULE_2+a", *done, "model.log"),
        module(tmp_path, "MODULE_3+a", "model.hlo_module.pb"),
    ]
    for number, others in ((4, ()), (5, ("model.done",)), (6, ("model.neff",))):
        module(tmp_path, f"MODULE_{number}+a", "model.log", *others)
    clear_failed(tmp_path)
    assert sorted((tmp_path / COMPILER).iterdir()) == kept


def test_locks_are_cleared_and_nothing_else(tmp_path):
    module(tmp_path, "MODULE_1+a", "model.hlo_module.pb", "model.hlo_module.pb.lock")
    clear_stale_locks(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.hlo_module.pb"]


@pytest.mark.parametrize("ask", [clear_failed, clear_stale_locks, list_graphs])
def test_a_missing_cache_is_empty(tmp_path, ask):
    assert not ask(tmp_path / "none")


def test_the_complete_graphs_are_listed_with_their_size(tmp_path):
    module(tmp_path, "MODULE_1+a", "model.neff", "model.done")
    module(tmp_path, "MODULE_2+a", "model.neff")
    module(tmp_path, "MODULE_3+a", "model.done")
    (module(tmp_path, "MODULE_4+a", "model.done") / "model.neff").touch()
    assert list_graphs(tmp_path) == {"MODULE_1+a": len("model.neff")}


def test_the_graph_of_the_later_compiler_counts(tmp_path):
    for version in ("2.9.1.0+aa", "2.25.3371.0+bb"):
        folder = module(tmp_path, "MODULE_1+a", "model.neff", "model.done", compiler=f"neuronxcc-{version}")
        (folder / "model.neff").write_text(version)
    assert list_graphs(tmp_path) == {"MODULE_1+a": len("2.25.3371.0+bb")}
