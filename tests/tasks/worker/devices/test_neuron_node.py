import json
import os

import pytest

from configs.load import load_config
from tasks.contracts.outcomes import Check
from tasks.worker.devices.neuron_node import check_node
from tests.support.fakes.neuron.neuron_tools import FakeTools, make_sysfs, sample, set_counter

TRN1 = load_config(None, []).health.machines["trn1.32xlarge"]
REPORT = """
path = sys.argv[sys.argv.index("--report-to-json-file") + 1]
open(path, "w").write({text!r})
"""


class Machine:
    """A healthy trn1.32xlarge, in which tests plant faults."""

    def __init__(self, folder, monkeypatch) -> None:
        self.tools = FakeTools(folder / "bin", monkeypatch)
        self.sysfs = make_sysfs(folder / "sysfs", 16)
        self.tools.add("neuron-ls", stdout=sample("neuron-ls-trn1.json"))
        self.tools.add("fi_info", stdout=sample("fi-info-trn1.txt"))
        self.nccom(bus=45.0)

    def nccom(self, bus: float, **output) -> None:
        row = {"size(B)": 2**28, "count(elems)": 2**26, "type": "fp32", "algbw(GB/s)": bus, "time:avg(us)": 6.19}
        slower = row | {"size(B)": 2**10, "busbw(GB/s)": 0.1}
        text = json.dumps({"results": [slower, row | {"busbw(GB/s)": bus}]})
        self.tools.add("nccom-test", body=REPORT.format(text=text), **output)

    def devices(self, change) -> None:
        devices = json.loads(sample("neuron-ls-trn1.json"))
        change(devices)
        self.tools.add("neuron-ls", stdout=json.dumps(devices))

    def check(self, machine=TRN1) -> list[Check]:
        return list(check_node(machine, self.sysfs))


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


ALL = [
    "neuron devices",
    "neuron cores",
    "neuron processes",
    "neuron ecc",
    "neuron ecc repairable",
    "neuron ecc counters",
    "efa interfaces",
    "nccom all-reduce",
    "nccom all-gather",
    "nccom reduce-scatter",
]


@pytest.mark.shows("Neuron's tools")
def test_a_healthy_machine_passes_all_checks(machine, golden):
    checks = machine.check()
    assert [check.name for check in checks] == ALL
    assert all(check.passed and check.action == "proceed" for check in checks)
    golden(checks[-1].sentence)


def test_slow_links_are_a_warning_because_nobody_publishes_how_fast_they_are(machine, golden):
    machine.nccom(bus=29.9)
    slow = [check for check in machine.check() if not check.passed]
    assert [check.name for check in slow] == ["nccom all-reduce", "nccom all-gather", "nccom reduce-scatter"]
    assert {(check.severity, check.action) for check in slow} == {("warning", "proceed")}
    golden(slow[1].sentence)


def hold_cores(devices) -> None:
    devices[3]["neuron_processes"] = [{"pid": 99, "command": "jupyter", "neuron_runtime_version": "2"}]


def lose_core(devices) -> None:
    devices[3]["nc_count"] = 1


FAULTS = {
    "a device less": (lambda m: m.devices(lambda d: d.pop(7)), "neuron devices", "exclude host", "missing: 7"),
    "no device": (lambda m: m.devices(lambda d: d.clear()), "neuron devices", "stop", "Map all of /dev/neuron"),
    "a core less": (lambda m: m.devices(lose_core), "neuron cores", "exclude host", "device 3 has 1"),
    "a foreign process": (lambda m: m.devices(hold_cores), "neuron processes", "retry elsewhere", "process 99 (jup"),
    "no driver": (
        lambda m: m.tools.add("neuron-ls", stderr="no driver", code=1), "neuron devices", "retry elsewhere",
        "is the driver loaded",
    ),
    "another release": (
        lambda m: m.tools.add("neuron-ls", stdout='{"mlas": []}'), "neuron devices", "stop", "another format"
    ),
    "memory errors": (
        lambda m: set_counter(m.sysfs, 2, "mem_ecc_uncorrected", 1), "neuron ecc", "exclude host", "memory of neuron2"
    ),
    "an interface less": (
        lambda m: m.tools.add("fi_info", stdout=sample("fi-info-trn1-damaged.txt")), "efa interfaces", "exclude host",
        "lists 7 EFA",
    ),
    "no interface": (
        lambda m: m.tools.add("fi_info", stderr="fi_getinfo: -61 (No data available)", code=61), "efa interfaces",
        "stop", "lists 0 EFA",
    ),
    "wrong numbers": (
        lambda m: m.nccom(45.0, stdout="2 errors found - test failed"), "nccom all-reduce", "exclude host",
        "2 errors found",
    ),
    "a size that could not run": (
        lambda m: m.nccom(45.0, stdout=sample("nccom-failed.txt")), "nccom all-reduce", "retry elsewhere",
        "could not run",
    ),
    "no report": (
        lambda m: m.tools.add("nccom-test", stderr="cannot init"), "nccom all-reduce", "retry elsewhere", "cannot init"
    ),
}  # fmt: skip


@pytest.mark.shows("Neuron's tools")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_verdict(machine, fault):
    plant, name, action, message = FAULTS[fault]
    plant(machine)
    (check,) = (check for check in machine.check() if not check.passed)
    assert (check.name, check.severity, check.action) == (name, "critical", action)
    assert message in check.sentence


@pytest.mark.parametrize("tool", ["neuron-ls", "fi_info", "nccom-test"])
def test_a_missing_tool_stops(machine, monkeypatch, tool):
    (machine.tools.folder / tool).unlink()
    monkeypatch.setenv("PATH", str(machine.tools.folder))
    (check,) = (check for check in machine.check() if not check.passed)
    assert check.action == "stop"
    assert f"{tool} is" in check.sentence


def test_a_machine_of_another_type_stops(machine, golden):
    smaller = TRN1.model_copy(update={"devices": 1})
    (check,) = (check for check in machine.check(smaller) if not check.passed)
    assert check.action == "stop"
    golden(check.sentence)


def test_a_machine_of_unknown_type_needs_one_device_and_no_speed(machine):
    machine.devices(lambda devices: devices.pop(7))
    machine.nccom(bus=0.1)
    machine.tools.add("fi_info", code=1)
    checks = machine.check(None)
    assert "efa interfaces" not in {check.name for check in checks}
    assert all(check.passed for check in checks)
    assert "over 30 NeuronCores" in checks[-1].sentence


def test_collectives_are_not_run_on_busy_cores(machine):
    machine.devices(hold_cores)
    machine.tools.add("nccom-test", body="raise SystemExit('tried')")
    assert "nccom all-reduce" not in {check.name for check in machine.check()}


def test_a_single_core_has_no_collectives_to_check(machine):
    machine.devices(lambda devices: devices.__delitem__(slice(1, None)) or devices[0].update(nc_count=1))
    assert "nccom all-reduce" not in {check.name for check in machine.check(None)}


def test_the_collective_test_gets_all_cores_of_the_machine(machine, monkeypatch):
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0")
    monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:9")
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "600")
    body = "names = sorted(name for name in os.environ if name.startswith('NEURON_RT_'))\nprint(names)"
    machine.tools.add("nccom-test", body=body)
    (check,) = (check for check in machine.check() if not check.passed)
    assert "['NEURON_RT_EXEC_TIMEOUT']" in check.sentence
    assert os.environ["NEURON_RT_VISIBLE_CORES"] == "0"
