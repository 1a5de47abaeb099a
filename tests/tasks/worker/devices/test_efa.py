"""The EFA interfaces of a machine, from samples of `fi_info`, and what they moved."""

from pathlib import Path

import pytest

from tasks.foundation.errors import HangError, HostError
from tasks.worker.devices import neuron_node
from tasks.worker.devices.neuron_node import check_interfaces, compute_traffic, list_interfaces, read_counters
from tests.support.fakes.neuron.neuron_tools import FakeTools, sample


def listed(fakes: FakeTools, name: str) -> tuple[str, ...]:
    fakes.add("fi_info", stdout=sample(name))
    return list_interfaces()


def test_an_interface_with_many_endpoints_counts_once(fakes):
    found = listed(fakes, "fi-info-trn1.txt")
    assert found[:3] == ("rdmap16s27", "rdmap16s28", "rdmap32s29")
    assert len(found) == 8
    check = check_interfaces(found, 8)
    assert (check.passed, check.observed, check.severity, check.action) == (True, 8.0, "critical", "proceed")
    assert check_interfaces(found, 4).passed, "more than needed"


def test_other_names_are_read_and_other_providers_are_not_counted(fakes):
    assert listed(fakes, "fi-info-old-names.txt") == ("efa_0",)


@pytest.mark.parametrize("output", [{"stderr": "fi_getinfo: -61 (No data available)\n", "code": 61}, {"stdout": ""}])
def test_no_interface_means_another_kind_of_machine_or_container(fakes, output):
    fakes.add("fi_info", **output)
    check = check_interfaces(list_interfaces(), 8)
    assert (check.passed, check.action) == (False, "stop")
    assert "lists 0 EFA interfaces" in check.sentence


def test_the_provider_is_an_argument_of_the_tool(fakes):
    fakes.add("fi_info", body="print('provider: efa'); print('domain: ' + '_'.join(sys.argv[1:]))")
    assert list_interfaces() == ("-p_efa",)


def test_a_failing_tool_is_host(fakes):
    fakes.add("fi_info", stderr="libfabric: cannot open\n", code=1)
    with pytest.raises(HostError, match=r"(?s)exited with 1.*libfabric"):
        list_interfaces()


def test_a_stuck_driver_is_a_hang(fakes, monkeypatch):
    monkeypatch.setattr(neuron_node, "INTERFACES_SECONDS", 0.3)
    fakes.add("fi_info", body="import signal; signal.pause()")
    with pytest.raises(HangError, match="efa did not end"):
        list_interfaces()


def write(root: Path, device: str, **counters: int | str) -> None:
    folder = root / device / "ports" / "1" / "hw_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in counters.items():
        (folder / name).write_text(f"{value}\n")


def test_what_was_moved_is_summed_over_the_interfaces(tmp_path):
    write(tmp_path, "rdmap16s27", tx_bytes=2**30, rx_bytes=0, rx_drops=7, retrans_pkts=1)
    write(tmp_path, "rdmap32s27", tx_bytes=0, rx_bytes=5, rx_drops=0)  # an older driver does not count repetitions
    before = read_counters(tmp_path)
    write(tmp_path, "rdmap16s27", tx_bytes=3 * 2**30, retrans_pkts=4)
    write(tmp_path, "rdmap32s27", tx_bytes=2**29, rx_bytes=2**30 + 5, rx_drops=2)
    use = compute_traffic(before, read_counters(tmp_path))
    assert use is not None
    assert (use.interfaces, use.sent_gib, use.received_gib) == (2, 2.5, 1.0)
    assert use.faults == {"rx_drops": 2, "retrans_pkts": 3}


@pytest.mark.parametrize("counters", [{}, {"tx_packets": 5}])
def test_without_interfaces_that_count_nothing_is_known(tmp_path, counters):
    write(tmp_path, "mlx5_0", **counters)
    assert compute_traffic({}, read_counters(tmp_path)) is None


def test_a_counter_that_is_no_number_is_left_out(tmp_path):
    write(tmp_path, "rdmap16s27", tx_bytes=2**30, rx_bytes="-", rx_drops="")
    use = compute_traffic({}, read_counters(tmp_path))
    assert use is not None
    assert (use.sent_gib, use.received_gib, use.faults) == (1.0, 0.0, {})
