import json

import pytest

from tasks.foundation.errors import CodeError, HangError, HostError, StageError
from tasks.worker.devices import neuron_node
from tasks.worker.devices.neuron_node import NeuronDevice, check_devices, list_devices
from tests.support.fakes.neuron.neuron_tools import FakeTools, sample


def listed(fakes: FakeTools, name: str) -> tuple[NeuronDevice, ...]:
    fakes.add("neuron-ls", stdout=sample(name))
    return list_devices()


def refusals(devices, expected) -> dict[str, str]:
    return {check.name: check.sentence for check in check_devices(devices, expected) if not check.passed}


def test_the_devices_of_a_trn1(fakes):
    devices = listed(fakes, "neuron-ls-trn1.json")
    assert [device.number for device in devices] == list(range(16))
    assert {device.nc_count for device in devices} == {2}
    checks = check_devices(devices, 16)
    assert [(check.name, check.observed) for check in checks] == [
        ("neuron devices", 16.0),
        ("neuron cores", 32.0),
        ("neuron processes", 0.0),
    ]
    assert all(check.passed and check.severity == "critical" for check in checks)


def test_a_machine_with_one_free_device(fakes):
    (device,) = listed(fakes, "neuron-ls-trn1-2xlarge.json")
    assert device.processes is None
    assert not refusals([device], None)


def test_a_busy_trn2_names_the_processes_on_its_devices(fakes):
    devices = listed(fakes, "neuron-ls-trn2-busy.json")
    assert {device.nc_count for device in devices} == {4}
    refused = refusals(devices, 16)
    assert list(refused) == ["neuron processes"]
    assert "113985 (neuron-bench exec --run-as-cc-neff --warmup none) on device 0, 1" in refused["neuron processes"]
    assert "4711 (python -m tasks.worker train)" in refused["neuron processes"]


@pytest.mark.parametrize(("expected", "passed"), [(None, True), (16, True), (15, False), (17, False)])
def test_the_number_of_devices_must_be_the_expected_one(fakes, expected, passed):
    assert ("neuron devices" not in refusals(listed(fakes, "neuron-ls-trn1.json"), expected)) is passed


@pytest.mark.parametrize("expected", [None, 16])
def test_no_device_at_all_is_refused(fakes, expected):
    fakes.add("neuron-ls", stdout="[]")
    assert list(refusals(list_devices(), expected)) == ["neuron devices"]


def test_the_tool_is_run_with_json_output(fakes, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    listed(fakes, "neuron-ls-trn1.json")
    assert json.loads((tmp_path / "log").read_text())["argv"] == ["-j"]


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        ({"stderr": "no driver\n", "code": 1}, HostError, "neuron-ls -j exited with 1.*\nno driver"),
        ({"stdout": "no devices found\n", "code": 2}, HostError, "exited with 2.*\nno devices found"),
        ({"stdout": ""}, HostError, "the output of neuron-ls -j is empty"),
        ({"stdout": sample("neuron-ls-cut-off.json")}, HostError, "is not JSON"),
        ({"stdout": sample("neuron-ls-grouped.json")}, CodeError, 'else than a list of devices:\n{"instance_type"'),
        ({"stdout": sample("neuron-ls-missing-key.json")}, CodeError, "unknown format: 1.nc_count: Field required"),
        ({"stdout": '[{"neuron_device": "a"}]'}, CodeError, "0.neuron_device: Input should be a valid integer"),
    ],
)  # fmt: skip
def test_any_other_output_is_an_error_that_shows_it(fakes, output, kind: type[StageError], message):
    fakes.add("neuron-ls", **output)
    with pytest.raises(kind, match=f"(?s){message}"):
        list_devices()


def test_a_stuck_driver_is_a_hang(fakes, monkeypatch):
    monkeypatch.setattr(neuron_node, "LIST_SECONDS", 0.3)
    fakes.add("neuron-ls", body="import signal; signal.pause()")
    with pytest.raises(HangError, match=r"neuron-ls -j .* 0\.3 s"):
        list_devices()
