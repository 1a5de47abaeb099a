import json
from pathlib import Path

import pytest

from tasks.foundation.errors import CodeError, ConfigError, HangError, HostError, StageError
from tasks.worker.devices.neuron_node import CollectiveSpeed, measure
from tests.support.fakes.neuron.neuron_tools import sample

REPORT = """
path = sys.argv[sys.argv.index("--report-to-json-file") + 1]
open(path, "w").write({text!r})
"""


def run() -> tuple[CollectiveSpeed, ...]:
    return measure("all_reduce", 32, 1024, 65536, factor=4, timeout_seconds=30)


def test_the_speeds_are_read_from_the_report(fakes, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    fakes.add("nccom-test", body=REPORT.format(text=sample("nccom-all-reduce.json")))
    first, *_, last = run()
    assert (first.bytes, last.bytes, last.bus_gb_per_second) == (1024, 65536, 6.538)
    arguments = json.loads((tmp_path / "log").read_text())["argv"]
    report = Path(arguments[arguments.index("--report-to-json-file") + 1])
    assert " ".join(arguments).replace(str(report), "F") == (
        "-r 32 -b 1024 -e 65536 -f 4 -d fp32 -c random --non-interactive --report-to-json-file F all_reduce"
    )
    assert not report.parent.exists()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("code", [0, 1])
def test_wrong_numbers_are_host_with_any_exit_status(fakes, stream, code):
    fakes.add(
        "nccom-test",
        **{stream: "3 mismatches of 256 elements\n2 errors found - test failed\n"},
        code=code,
        body=REPORT.format(text=sample("nccom-all-reduce.json")),
    )
    with pytest.raises(HostError, match="32 ranks: 2 errors"):
        run()


@pytest.mark.parametrize(
    ("log", "kind", "words"),
    [
        ("NRT: Neuron Core(s) not available - Requested:32 Available:30", HostError, "not available"),
        ("open /dev/neuron0: Permission denied", ConfigError, "/dev/neuron"),
        (None, HostError, "2 errors found"),
    ],
)
def test_a_size_that_could_not_run_is_no_wrong_number(fakes, tmp_path, log, kind: type[StageError], words):
    """The tool counts it as an error too, but the links are not to blame."""
    path = tmp_path / "nccom_test.log"
    if log is not None:
        path.write_text(f"starting\n{log}\n")
    fakes.add("nccom-test", stdout=sample("nccom-failed.txt").replace("/tmp/nccom_test_log_7pqpdfjf.log", str(path)))
    with pytest.raises(kind, match=f"could not run(?s:.*){words}") as caught:
        run()
    assert type(caught.value) is kind


def test_the_tool_runs_in_a_folder_that_it_may_write_to(fakes, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    fakes.add("nccom-test", body=REPORT.format(text=sample("nccom-all-reduce.json")))
    run()
    seen = json.loads((tmp_path / "log").read_text())
    assert seen["cwd"] == str(Path(seen["argv"][-2]).parent)


def test_a_count_of_no_errors_is_fine(fakes):
    body = REPORT.format(text=sample("nccom-all-reduce.json"))
    fakes.add("nccom-test", stdout="0 errors found\nAvg bus bandwidth: 2.4GB/s\n", body=body)
    assert len(run()) == 4


@pytest.mark.parametrize(
    ("report", "kind", "message"),
    [
        ("", HostError, "the report of nccom-test all_reduce over 32 ranks is empty"),
        (sample("nccom-cut-off.json"), HostError, "is not JSON"),
        (sample("nccom-no-rows.json"), HostError, "32 ranks measured nothing .*\nNeuron DKMS Driver is not running"),
        (sample("nccom-missing-key.json"), CodeError, r"results.0.busbw\(GB/s\): Field required"),
        (sample("nccom-all-reduce.json").replace("6.538", "NaN"), CodeError, r"results.\d.busbw\(GB/s\)"),
        ("[]", CodeError, "unknown format: top level"),
    ],
)
def test_a_report_without_speeds_is_an_error(fakes, report, kind: type[StageError], message):
    fakes.add("nccom-test", stderr="Neuron DKMS Driver is not running!\n", body=REPORT.format(text=report))
    with pytest.raises(kind, match=f"(?s){message}"):
        run()


def test_a_missing_report_shows_the_output(fakes):
    fakes.add("nccom-test", stderr="Neuron DKMS Driver is not running!\n", code=1)
    with pytest.raises(HostError, match=r"(?s)with 1 .*\nNeuron DKMS"):
        run()


def test_ranks_that_wait_forever_are_a_hang(fakes):
    fakes.add("nccom-test", stdout="Timeout waiting for RX - retrying\n", body="import signal; signal.pause()")
    with pytest.raises(HangError, match=r"(?s)-r 2 .* 1 s.*RX"):
        measure("all_reduce", 2, 1024, 1024, factor=4, timeout_seconds=1.0)
