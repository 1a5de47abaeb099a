import json
import os
import time

import pytest

from tasks.foundation.errors import ConfigError, HangError, HostError
from tasks.worker.devices import neuron_tools
from tasks.worker.devices.neuron_tools import PACKAGES, parse_json, run_tool, start_tool, tail
from tests.support.fakes.stand_ins import is_running

# Prints its pid, may ignore SIGTERM, and starts a child that would outlive it.
STUCK = """
import signal, subprocess
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pids = json.dumps([os.getpid(), child.pid])
print(pids, flush=True)
if path := os.environ.get("FAKE_PIDS"):
    open(path, "w").write(pids)
print("nd0 nc0 Timestamp program stop timeout (1000 ms)", file=sys.stderr, flush=True)
signal.pause()
"""


def is_gone(pid: int) -> bool:
    """Whether a process ends soon; one that is not our child takes a moment."""
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_tool_returns_its_output_and_exit_status(fakes):
    fakes.add("neuron-ls", stdout="devices\n", stderr="a\n\nb\n", code=3, body="print(sys.argv[1:])")
    output = run_tool("neuron-ls", "-j", timeout_seconds=30)
    assert (output.command, output.code, output.tail) == ("neuron-ls -j", 3, "a\nb")
    assert output.stdout == "devices\n['-j']\n"


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_missing_tool_is_an_error_that_names_its_package(tmp_path, monkeypatch, name, package):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as error:
        run_tool(name, timeout_seconds=1)
    folder = "/opt/amazon/efa/bin" if name == "fi_info" else "/opt/aws/neuron/bin"
    assert name in str(error.value)
    assert str(folder) in str(error.value)
    assert package in str(error.value)


def test_a_tool_is_found_in_the_sdks_folder(fakes, monkeypatch, tmp_path):
    fakes.add("neuron-ls", stdout="here")
    monkeypatch.setattr(neuron_tools, "SDK_FOLDER", fakes.folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_tool("neuron-ls", timeout_seconds=30).stdout == "here"


def test_a_file_that_is_no_program_is_an_error_that_names_it(fakes):
    (fakes.folder / "neuron-ls").write_bytes(b"\x7fELF, cut off")
    (fakes.folder / "neuron-ls").chmod(0o755)
    with pytest.raises(ConfigError, match=r"neuron-ls .*aws-neuronx-"):
        run_tool("neuron-ls", timeout_seconds=1)


@pytest.mark.parametrize("deaf", [False, True], ids=["on SIGTERM", "on SIGKILL only"])
def test_a_stuck_tool_is_a_hang_and_is_ended_with_its_children(fakes, monkeypatch, tmp_path, deaf):
    monkeypatch.setattr(neuron_tools, "GRACE_SECONDS", 0.2)
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    fakes.add("neuron-ls", body=STUCK.format(deaf=deaf))
    with pytest.raises(HangError) as error:
        run_tool("neuron-ls", "-j", timeout_seconds=1.0)
    assert "neuron-ls -j did" in str(error.value)
    assert "nd0 nc0 Timestamp program stop timeout" in str(error.value)
    assert all(is_gone(pid) for pid in json.loads((tmp_path / "pids").read_text()))


def test_a_tool_is_ended_when_its_reader_fails(fakes):
    fakes.add("neuron-monitor", body=STUCK.format(deaf=False))
    pids = []

    def read_and_fail() -> None:
        with start_tool([str(fakes.folder / "neuron-monitor")]) as process:
            assert process.stdout is not None
            pids.extend(json.loads(process.stdout.readline()))
            raise KeyError

    with pytest.raises(KeyError):
        read_and_fail()
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_a_tool_runs_with_the_environment_and_folder_given(fakes, tmp_path):
    fakes.add("neuron-ls", body="print(os.environ.get('HOME'), os.environ.get('A'), os.getcwd())")
    with start_tool([str(fakes.folder / "neuron-ls")], {"A": "b"}, tmp_path) as process:
        stdout, _ = process.communicate()
    assert stdout.split() == ["None", "b", os.fspath(tmp_path)]


@pytest.mark.parametrize(
    ("text", "message"), [("", "the report is empty"), (" \n", "is empty"), ('{"a": [1', 'is not JSON .*\n{"a": \\[1')]
)
def test_output_that_is_no_json_is_shown(text, message):
    with pytest.raises(HostError, match=message):
        parse_json(text, "the report")


def test_a_tail_is_the_last_lines_that_are_not_empty():
    assert tail("a\n\nb \n\nc\n\n", lines=2) == "b\nc"
    assert tail("\n") == "(no output)"
