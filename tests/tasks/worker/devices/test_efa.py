import pytest

from tasks.foundation.errors import HangError, HostError
from tasks.worker.devices import efa
from tasks.worker.devices.efa import check_interfaces, list_interfaces
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
    assert "lists 0 EFA interfaces (none); 8 are expected. Map /dev/infiniband/uverbs*" in check.sentence


def test_the_provider_is_an_argument_of_the_tool(fakes):
    fakes.add("fi_info", body="print('provider: efa'); print('domain: ' + '_'.join(sys.argv[1:]))")
    assert list_interfaces() == ("-p_efa",)


def test_a_failing_tool_is_host(fakes):
    fakes.add("fi_info", stderr="libfabric: cannot open\n", code=1)
    with pytest.raises(HostError, match=r"fi_info -p efa exited with 1.*\nlibfabric: cannot open"):
        list_interfaces()


def test_a_stuck_driver_is_a_hang(fakes, monkeypatch):
    monkeypatch.setattr(efa, "TIMEOUT_SECONDS", 0.3)
    fakes.add("fi_info", body="import signal; signal.pause()")
    with pytest.raises(HangError, match="fi_info -p efa did not end"):
        list_interfaces()
