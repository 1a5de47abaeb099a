import json

import pytest

from tasks.contracts import Check
from tasks.errors import CodeError, HangError, HostError, StageError
from tasks.worker.neuron import monitor, tools
from tasks.worker.neuron.monitor import Latency, check_report, read_report
from tests.support.neuron_tools import FakeTools, sample
from tests.support.stand_ins import is_running

STAY = "import signal\n{first}\nsignal.pause()"


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> FakeTools:
    monkeypatch.setattr(tools, "GRACE_SECONDS", 0.2)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return FakeTools(tmp_path / "bin", monkeypatch)


def pid(fakes: FakeTools) -> int:
    return json.loads((fakes.folder.parent / "log").read_text())["pid"]


def failures(name: str) -> dict[str, Check]:
    return {check.name: check for check in check_report(read_report(sample(name))) if not check.passed}


def test_an_idle_trn1():
    report = read_report(sample("neuron-monitor-trn1-idle.json"))
    assert report.runtimes == ()
    assert report.ecc is not None
    assert [each.device for each in report.ecc] == list(range(16))
    assert report.hardware is not None
    assert (report.hardware.device_type, report.hardware.devices, report.hardware.cores_per_device) == (
        "trainium",
        16,
        2,
    )
    assert report.errors == {}
    assert all(check.passed for check in check_report(report))


def test_a_busy_trn2():
    report = read_report(sample("neuron-monitor-trn2-busy.json"))
    training, quiet = report.runtimes
    assert (training.pid, training.tag, training.error) == (4711, "millrace-train", "")
    assert training.executions is not None
    assert (training.executions.completed, training.executions.errors.hardware) == (123, 0)
    assert training.executions.latency == Latency(p50=0.01100007, p99=0.01100011)
    assert quiet.executions is not None
    assert quiet.executions.latency is None
    assert report.hardware is not None
    assert (report.hardware.memory_bytes, report.hardware.cores_per_device) == (96 * 2**30, 4)
    assert all(check.passed for check in check_report(report))


def test_a_faulty_machine():
    failed = failures("neuron-monitor-trn1-faulty.json")
    assert {name: (check.severity, check.observed) for name, check in failed.items()} == {
        "neuron executions": ("critical", 3.0),
        "neuron ecc uncorrected": ("critical", 3.0),
        "neuron ecc corrected": ("warning", 7.0),
    }
    assert "3 of process 4711" in failed["neuron executions"].sentence
    assert "2 in the memory of device 1, 1 in the SRAM of device 1" in failed["neuron ecc uncorrected"].sentence
    assert "7 in the memory of device 1" in failed["neuron ecc corrected"].sentence


def test_a_machine_without_driver():
    failed = failures("neuron-monitor-no-driver.json")
    assert {name: check.severity for name, check in failed.items()} == {
        "neuron hardware": "critical",
        "neuron monitor": "warning",
    }
    assert "neuron driver is not running" in failed["neuron hardware"].sentence
    assert "system_data: neuron_hw_counters: failed to open /dev/neuron0" in failed["neuron monitor"].sentence
    assert "169.254.169.254" not in failed["neuron monitor"].sentence


def test_sections_that_are_absent_or_failed_are_a_warning():
    report = read_report(sample("neuron-monitor-partial.json"))
    assert [runtime.executions for runtime in report.runtimes] == [None, None]
    assert (report.ecc, report.hardware) == (None, None)
    (check,) = failures("neuron-monitor-partial.json").values()
    assert (check.name, check.severity, check.observed) == ("neuron monitor", "warning", 4.0)
    for words in (
        "process 4711: execution_stats: could not read the execution counters",
        "process 4712: process is gone",
        "no ECC counters",
        "no neuron_hardware_info",
    ):
        assert words in check.sentence


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (sample("neuron-monitor-missing-key.json"), CodeError, r"execution_summary.timed_out: Field required"),
        ("[1]", CodeError, "neuron-monitor prints another format than is known here: top level"),
        ("{}", CodeError, "neuron_runtime_data: Field required"),
        ('{"neuron_runtime_data": [', HostError, "is not JSON"),
        ("", HostError, "is empty"),
    ],
)
def test_a_line_that_is_no_report_is_an_error(line, kind: type[StageError], message):
    with pytest.raises(kind, match=message):
        read_report(line)


def test_a_sample_is_the_first_report_and_the_tool_is_ended(fakes):
    idle, busy = sample("neuron-monitor-trn1-idle.json"), sample("neuron-monitor-trn2-busy.json")
    fakes.add(
        "neuron-monitor", stderr="starting\n", stdout=f"\n{{half a line\n{idle}{busy}", body=STAY.format(first="")
    )
    assert monitor.sample(30).runtimes == ()
    assert not is_running(pid(fakes))


def test_a_tool_that_does_not_want_to_end_is_killed(fakes):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdout.write(open({path!r}).read()); sys.stdout.flush()"
    path = fakes.folder / "report"
    path.write_text(sample("neuron-monitor-trn1-idle.json"))
    fakes.add("neuron-monitor", body=STAY.format(first=deaf.format(path=str(path))))
    monitor.sample(30)
    assert not is_running(pid(fakes))


@pytest.mark.parametrize(
    ("stdout", "kind", "message"),
    [
        ("waiting\n", HangError, "neuron-monitor gave no report within 1 s. Its last lines:\nwaiting"),
        ("waiting", HangError, "Its last lines:\nwaiting"),
        (sample("neuron-monitor-missing-key.json"), CodeError, "timed_out: Field required"),
    ],
)
def test_without_a_report_the_tool_is_ended_too(fakes, stdout, kind: type[StageError], message):
    fakes.add("neuron-monitor", stdout=stdout, body=STAY.format(first=""))
    with pytest.raises(kind, match=message):
        monitor.sample(1.0)
    assert not is_running(pid(fakes))


def test_a_tool_that_ends_without_a_report_is_a_sick_host(fakes):
    fakes.add("neuron-monitor", stderr="no driver\n", code=4)
    with pytest.raises(
        HostError, match=r"neuron-monitor ended with 4 before its first report\. Its last lines:\nno driver"
    ):
        monitor.sample(30)
