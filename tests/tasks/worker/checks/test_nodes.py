"""Machines with NeuronCores, two workers on each; the tools are scripts that report a fault on host-1.

All workers get the same findings, through files.
"""

import json
import math
import os
import tempfile
import threading
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.records import find_record
from tasks.contracts.jobs import HealthInputs
from tasks.contracts.outcomes import Check
from tasks.foundation.errors import ConfigError, HangError, HostError, StageError
from tasks.runs import host_records
from tasks.runs.host_records import Findings
from tasks.worker import health
from tasks.worker.checks import nodes
from tasks.worker.checks.nodes import AllFindings, WorkerFindings, exchange
from tasks.worker.devices import neuron_node
from tasks.worker.process.job import Rank
from tests.support.fakes.neuron.neuron_tools import FakeTools, make_sysfs, sample, set_counter
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import make_job, tiny_config


def check(name: str) -> Check:
    return Check(name=name, passed=True, severity="critical", observed=None, sentence=name)


def part(index: int) -> WorkerFindings:
    return WorkerFindings(host=f"host-{index}", numbers={"seconds": float(index)}, checks=(check(f"of {index}"),))


def judge(parts) -> list[Check]:
    return [each for one in parts for each in one.checks]


def test_all_workers_get_the_same_findings_and_only_the_first_judges(store):
    judged, wholes = [], {}

    def judging(index):
        def judge_once(parts):
            judged.append(index)
            return judge(parts)

        return judge_once

    def take_part(index):
        wholes[index] = exchange(store, "findings", index, 3, part(index), judging(index))

    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert judged == [0]
    assert wholes[0] == wholes[1] == wholes[2]
    assert wholes[0] == AllFindings(
        hosts=("host-0", "host-1", "host-2"),
        numbers=({"seconds": 0.0}, {"seconds": 1.0}, {"seconds": 2.0}),
        checks=(check("of 0"), check("of 1"), check("of 2")),
    )


def test_the_first_worker_concludes_before_the_others_read_the_findings(store):
    seen = []

    def conclude(parts):
        seen.append(store.exists("findings/whole.json"))
        return judge(parts)

    store.write("findings/1.json", part(1).to_json())
    exchange(store, "findings", 0, 2, part(0), conclude)
    assert seen == [False]
    assert store.exists("findings/whole.json")


def test_a_single_worker_writes_nothing(store):
    assert exchange(store, "findings", 0, 1, part(0), judge).hosts == ("host-0",)
    assert store.list("findings") == []


def test_nan_survives(store):
    store.write("findings/1.json", part(1).model_copy(update={"numbers": {"seconds": math.nan}}).to_json())
    whole = exchange(store, "findings", 0, 2, part(0), judge)
    assert math.isnan(whole.numbers[1]["seconds"])


def test_a_missing_worker_is_named(store, monkeypatch):
    monkeypatch.setattr("tasks.worker.checks.nodes.WAIT_SECONDS", 0.05)
    store.write("findings/2.json", part(2).to_json())
    with pytest.raises(HangError, match=r"1\.json, findings/3\.json"):
        exchange(store, "findings", 0, 4, part(0), judge)
    with pytest.raises(HangError, match=r"findings/whole\.json"):
        exchange(store, "findings", 1, 4, part(1), judge)


SMALL = ("health.matmul_size=64", "health.all_reduce_mib=1", "health.min_memory_gib=0.1")
DAMAGED = """
if os.environ.get("MILLRACE_HOST") == "host-1":
    print({damaged!r})
else:
    print({whole!r})
"""
REPORT = """
row = {"size(B)": 2**28, "count(elems)": 2**26, "type": "fp32", "algbw(GB/s)": 45, "busbw(GB/s)": 45, "time:avg(us)": 9}
path = sys.argv[sys.argv.index("--report-to-json-file") + 1]
open(path, "w").write(json.dumps({"results": [row]}))
"""


@pytest.fixture
def tools(tmp_path, monkeypatch) -> FakeTools:
    """The tools of a healthy machine."""
    tools = FakeTools(tmp_path / "bin", monkeypatch)
    tools.add("neuron-ls", stdout=sample("neuron-ls-trn1.json"))
    tools.add("fi_info", stdout=sample("fi-info-trn1.txt"))
    tools.add("nccom-test", body=REPORT)
    make_sysfs(tmp_path / "sysfs", 16)
    return tools


def check_two_nodes(rank: Rank, folder: Path) -> tuple[str, str]:
    """Run health on four workers of two machines; the failure class and message of this one."""
    node, local = divmod(rank.index, 2)
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    os.environ["MILLRACE_HOST"] = f"host-{node}"
    os.environ["FAKE_LOG"] = str(folder / f"log-{node}")
    tempfile.tempdir = str(folder)
    nodes.uses_neuron = lambda config: True  # pyright: ignore[reportAttributeAccessIssue]
    neuron_node.ECC_ROOT = folder / "sysfs"  # pyright: ignore[reportConstantRedefinition]
    config = tiny_config(*SMALL, "health.machine=trn1.32xlarge", LOOSE)
    job = make_job(DirectoryStore(folder / "workspace"), config, HealthInputs(), rank=Rank(rank.index, 4, local, 2))
    try:
        outcome = health.run(job)
        return "", "; ".join(sorted({f"{check.name} of {check.host}" for check in outcome.checks if check.host}))
    except StageError as error:
        return error.failure, str(error)


# The test machine cannot reach the limits of a real one.
LOOSE = (
    "health.machines={trn1.32xlarge: {devices: 16, efa_interfaces: 8, min_node_bus_gb_s: 30, min_bus_gb_s: 0, "
    "max_latency_us: 1.0e9}}"
)


def test_each_machine_is_checked_once_and_all_workers_get_all_checks(store, tools, tmp_path):
    ends = run_ranks(4, check_two_nodes, tmp_path)
    assert len(set(ends)) == 1
    failure, checks = ends[0]
    assert failure == ""
    for host in ("host-0", "host-1"):
        assert f"neuron devices of {host}; " in checks
        assert f"nccom all-reduce of {host}; " in checks
    for node in range(2):
        calls = [json.loads(line) for line in (tmp_path / f"log-{node}").read_text().splitlines()]
        assert [line["argv"][0] for line in calls] == ["-j", "-p", "-r", "-r", "-r"]
    assert store.list("runs") == []
    assert not list(tmp_path.glob("millrace-machine-*"))
    assert host_records.known_hosts(store) == ()


def test_a_fault_of_one_machine_ends_all_workers_with_the_same_message(store, tools, tmp_path):
    damaged = DAMAGED.format(damaged=sample("neuron-ls-trn1-damaged.json"), whole=sample("neuron-ls-trn1.json"))
    tools.add("neuron-ls", body=damaged)
    ends = run_ranks(4, check_two_nodes, tmp_path)
    assert len(set(ends)) == 1
    failure, message = ends[0]
    assert failure == "HOST"
    assert "lists 15 Neuron devices" in message
    assert "missing: 7" in message
    assert message.endswith("[exclude host: host-1]")
    findings = find_record(store, "runs/run/health/attempt-1/findings.json", Findings)
    assert findings is not None
    assert {check.host for check in findings.checks if not check.passed} == {"host-1"}
    assert {check.host for check in findings.checks if check.passed} == {"host-0", "host-1"}
    assert [record.host for record in host_records.known_hosts(store)] == ["host-1"]


def test_the_other_workers_of_a_machine_wait_for_a_local_file_and_ask_nobody(store):
    """They have no part in the work itself, which would look for the answer in the bucket again and again."""
    whole = AllFindings(hosts=("a", "a"), numbers=({}, {}), checks=())
    jobs = [make_job(store, tiny_config(), HealthInputs(), rank=Rank(local, 2, local, 2)) for local in range(2)]
    asked: list[str] = []

    def work() -> AllFindings:
        asked.append(threading.current_thread().name)
        return whole

    def other() -> None:
        assert nodes.run_once_per_machine(jobs[1], "workers", work) == whole

    thread = threading.Thread(target=other, name="other")
    thread.start()
    assert nodes.run_once_per_machine(jobs[0], "workers", work) == whole
    thread.join()
    assert asked == [threading.current_thread().name]


@pytest.fixture
def on_neuron(tools, tmp_path, monkeypatch) -> None:
    """Make the checks believe that this machine has NeuronCores."""
    monkeypatch.setattr(nodes, "uses_neuron", lambda config: True)
    monkeypatch.setattr(neuron_node, "ECC_ROOT", tmp_path / "sysfs")


def run(store: DirectoryStore, *overrides: str) -> list[str]:
    outcome = health.run(make_job(store, tiny_config(*SMALL, *overrides), HealthInputs()))
    return [check.name for check in outcome.checks]


@pytest.mark.usefixtures("on_neuron")
@pytest.mark.parametrize("machine", ["null", "trn1.32xlarge"])
def test_a_worker_checks_its_machine_before_it_takes_a_core(store, monkeypatch, machine):
    names = run(store, f"health.machine={machine}")
    assert names[:3] == ["store", "neuron devices", "neuron cores"]
    assert ("efa interfaces" in names) is (machine != "null")


@pytest.mark.usefixtures("on_neuron")
@pytest.mark.parametrize(
    ("counter", "kept"), [("sram_ecc_uncorrected", "exclusion"), ("mem_ecc_repairable_uncorrected", "strikes")]
)
def test_ecc_errors_end_the_stage_before_a_core_is_taken(store, tmp_path, monkeypatch, counter, kept):
    monkeypatch.setenv("MILLRACE_HOST", "host-0")
    monkeypatch.setattr(health, "open_accelerator", None)
    set_counter(tmp_path / "sysfs", 5, counter, 1)
    with pytest.raises(HostError, match=r"1 in .*neuron5.*: host-0\]"):
        run(store)
    (record,) = host_records.known_hosts(store)
    assert {"exclusion": record.exclusion, "strikes": record.strikes}[kept]
    assert (record.exclusion is None) is (kept == "strikes")


@pytest.mark.usefixtures("on_neuron")
def test_missing_tools_stop_the_stage_without_a_strike(store, tools, monkeypatch):
    monkeypatch.setenv("MILLRACE_HOST", "host-0")
    (tools.folder / "neuron-ls").unlink()
    with pytest.raises(ConfigError, match=r"(?s)neuron-ls .*host-0\]"):
        run(store)
    assert host_records.known_hosts(store) == ()


@pytest.mark.parametrize(
    ("accelerator", "installed", "device", "expected"),
    [
        ("cpu", True, None, False),
        ("xla", True, None, True),
        ("xla", True, "CPU", False),
        ("xla", False, None, False),
    ],
)
def test_neuron_and_xla_with_neuron_use_neuroncores(monkeypatch, accelerator, installed, device, expected):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    if device:
        monkeypatch.setenv("PJRT_DEVICE", device)
    assert nodes.uses_neuron(accelerator) is expected
