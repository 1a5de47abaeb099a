import pytest

from tasks.foundation.errors import ConfigError, HangError, HostError
from tasks.worker.neuron import efa
from tasks.worker.neuron.efa import check_interfaces, list_interfaces
from tests.support.fakes.neuron_tools import FakeTools, sample


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> FakeTools:
    return FakeTools(tmp_path / "bin", monkeypatch)


def listed(fakes: FakeTools, name: str) -> tuple[str, ...]:
    fakes.add("fi_info", stdout=sample(name))
    return list_interfaces()


def test_an_interface_counts_once_whatever_fabrics_and_endpoints_it_offers(fakes):
    found = listed(fakes, "fi-info-trn1.txt")
    assert found[:3] == ("rdmap16s27", "rdmap16s28", "rdmap32s29")
    assert len(found) == 8
    check = check_interfaces(found, 8)
    assert (check.passed, check.observed, check.severity, check.action) == (True, 8.0, "critical", "proceed")


def test_interfaces_have_other_names_without_rdma_core_and_other_providers_do_not_count(fakes):
    assert listed(fakes, "fi-info-old-names.txt") == ("efa_0",)


def test_a_missing_interface_excludes_the_machine(fakes):
    check = check_interfaces(listed(fakes, "fi-info-trn1-damaged.txt"), 8)
    assert (check.passed, check.action) == (False, "exclude host")
    assert check.sentence.startswith("fi_info lists 7 EFA interfaces (rdmap16s27, ")
    assert "rdmap144s28" not in check.sentence


@pytest.mark.parametrize("said", [{"stderr": "fi_getinfo: -61 (No data available)\n", "code": 61}, {"stdout": ""}])
def test_no_interface_means_another_kind_of_machine_or_container(fakes, said):
    fakes.add("fi_info", **said)
    check = check_interfaces(list_interfaces(), 8)
    assert (check.passed, check.action) == (False, "stop")
    assert "lists 0 EFA interfaces (none); 8 are expected. Map /dev/infiniband/uverbs*" in check.sentence


def test_more_interfaces_than_needed_are_fine(fakes):
    assert check_interfaces(listed(fakes, "fi-info-trn1.txt"), 4).passed


def test_the_provider_is_an_argument_of_the_tool(fakes):
    fakes.add("fi_info", body="print('provider: efa'); print('domain: ' + '_'.join(sys.argv[1:]))")
    assert list_interfaces() == ("-p_efa",)


def test_a_tool_that_fails_is_a_sick_host(fakes):
    fakes.add("fi_info", stderr="libfabric: cannot open\n", code=1)
    with pytest.raises(HostError, match=r"fi_info -p efa exited with 1.*\nlibfabric: cannot open"):
        list_interfaces()


def test_a_stuck_driver_is_a_hang(fakes, monkeypatch):
    monkeypatch.setattr(efa, "TIMEOUT_SECONDS", 0.3)
    fakes.add("fi_info", body="import signal; signal.pause()")
    with pytest.raises(HangError, match="fi_info -p efa did not end"):
        list_interfaces()


def test_without_the_tool_its_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="fi_info is neither on PATH nor in /opt/amazon/efa/bin"):
        list_interfaces()
