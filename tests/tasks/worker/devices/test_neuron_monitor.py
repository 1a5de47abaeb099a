import json

import pytest

from tasks.foundation.errors import CodeError, HostError, StageError
from tasks.worker.devices import neuron_tools
from tasks.worker.devices.neuron_monitor import GIB, Reading, read_report, run_monitor, summarize
from tests.support.cloud.batch_client import until
from tests.support.fakes.neuron.neuron_tools import FakeTools, sample
from tests.support.fakes.stand_ins import is_running

BUSY = sample("neuron-monitor-trn2-busy.json")
STAY = "import signal\nsignal.pause()"


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> FakeTools:
    monkeypatch.setattr(neuron_tools, "GRACE_SECONDS", 0.2)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return FakeTools(tmp_path / "bin", monkeypatch)


def pid(fakes: FakeTools) -> int:
    return json.loads((fakes.folder.parent / "log").read_text())["pid"]


def test_the_cores_and_the_memory_of_all_processes_are_one_reading():
    assert read_report(BUSY) == (pytest.approx(42.01), 2 * 12519788544)


def test_a_process_without_a_report_is_left_out():
    assert read_report(sample("neuron-monitor-partial.json")) == (pytest.approx(42.01), 12519788544)


def test_without_a_core_in_use_there_is_no_reading():
    assert read_report(sample("neuron-monitor-trn1-idle.json")) is None


@pytest.mark.parametrize(
    ("line", "kind", "named"),
    [
        (BUSY.replace("neuroncore_utilization", "renamed"), CodeError, r"neuroncore_utilization: Field required"),
        ("{}", CodeError, "neuron_runtime_data: Field required"),
        ('{"neuron_runtime_data": [', HostError, "not JSON"),
    ],
)
def test_a_line_that_is_no_report_is_an_error(line, kind: type[StageError], named):
    with pytest.raises(kind, match=named):
        read_report(line)


def test_a_summary_has_median_and_peak():
    use = summarize(1, [Reading(10.0, GIB), Reading(90.0, 3 * GIB), Reading(50.0, 2 * GIB)])
    assert (use.node, use.readings) == (1, 3)
    assert (use.utilization_median, use.utilization_peak) == (50.0, 90.0)
    assert (use.memory_gib_median, use.memory_gib_peak) == (2.0, 3.0)


@pytest.mark.shows("neuron-monitor")
def test_all_reports_are_read_and_the_tool_is_ended(fakes, capsys):
    fakes.add("neuron-monitor", stderr="starting\n", stdout=BUSY + BUSY, body=STAY)
    with run_monitor() as readings:
        until(lambda: len(readings) == 2)
    assert not is_running(pid(fakes))
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stdout", "code", "named"),
    [("no driver\n", 4, "no driver"), ('{"neuron_runtime_data": 5}\n', 0, "neuron_runtime_data")],
)
def test_a_failing_tool_is_only_a_warning(fakes, capsys, stdout, code, named):
    fakes.add("neuron-monitor", stdout=stdout, code=code)
    with run_monitor() as readings:
        log = fakes.folder.parent / "log"
        until(lambda: log.exists() and log.read_text() and not is_running(pid(fakes)))
    assert readings == []
    warning = capsys.readouterr().out
    assert warning.startswith("warning: ")
    assert named in warning


def test_a_missing_tool_is_only_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuron_tools, "SDK_FOLDER", tmp_path)
    with run_monitor() as readings:
        pass
    assert readings == []
    assert "aws-neuronx-tools" in capsys.readouterr().out
