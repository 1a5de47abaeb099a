from pathlib import Path

import pytest

from tasks.worker.devices.efa import compute_traffic, read_counters


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
