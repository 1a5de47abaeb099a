import pytest

from tasks.contracts.outcomes import Check
from tasks.worker.devices.neuron_node import check_ecc, read_counts
from tests.support.fakes.neuron.neuron_tools import make_sysfs, set_counter


def failed(root) -> list[Check]:
    return [check for check in check_ecc(read_counts(root)) if not check.passed]


def test_devices_without_errors_pass(tmp_path):
    root = make_sysfs(tmp_path / "sysfs", 16)
    (root / "neuron0" / "uevent").write_text("")
    counts = read_counts(root)
    assert list(counts)[9:11] == ["neuron9", "neuron10"]
    assert not failed(root)


@pytest.mark.parametrize(
    ("counter", "name", "action", "message"),
    [
        ("mem_ecc_uncorrected", "neuron ecc", "exclude host", "uncorrectable ECC errors: 3 in the device memory of"),
        ("sram_ecc_uncorrected", "neuron ecc", "exclude host", "uncorrectable ECC errors: 3 in the SRAM of neuron7"),
        ("mem_ecc_repairable_uncorrected", "neuron ecc repairable", "retry elsewhere", "uncorrectable but repairable"),
    ],
)
def test_an_error_is_reported_with_its_device_and_action(tmp_path, counter, name, action, message):
    root = make_sysfs(tmp_path / "sysfs", 16)
    set_counter(root, 7, counter, 3)
    (check,) = failed(root)
    assert (check.name, check.action, check.severity, check.observed) == (name, action, "critical", 3.0)
    assert check.sentence.startswith(message)


def test_a_counter_is_found_in_any_folder_of_the_driver(tmp_path):
    root = make_sysfs(tmp_path / "sysfs", 1)
    moved = root / "neuron0" / "health" / "ecc"
    (root / "neuron0" / "stats").rename(moved.parent)
    (moved.parent / "hardware").rename(moved)
    (moved / "sram_ecc_uncorrected").unlink()
    (moved / "sram_ecc_uncorrected").mkdir()
    (moved / "sram_ecc_uncorrected" / "total").write_text("2\n")
    (check,) = failed(root)
    assert "SRAM of neuron0" in check.sentence


@pytest.mark.parametrize("devices", [0, 2])
def test_counters_that_cannot_be_read_only_warn(tmp_path, devices):
    root = make_sysfs(tmp_path / "sysfs", devices)
    for path in root.rglob("*_uncorrected"):
        path.write_text("n/a\n")
    (check,) = failed(root)
    assert (check.name, check.severity, check.action) == ("neuron ecc counters", "warning", "proceed")
    assert ("neuron0, neuron1" if devices else "any device") in check.sentence


def test_a_missing_counter_passes(tmp_path):
    root = make_sysfs(tmp_path / "sysfs", 1)
    (root / "neuron0" / "stats" / "hardware" / "mem_ecc_repairable_uncorrected").unlink()
    assert not failed(root)
