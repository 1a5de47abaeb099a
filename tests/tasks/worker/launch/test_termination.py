import time

import pytest

from configs.load import load_config
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs.host_records import exclude
from tasks.worker.launch.__main__ import terminate_machine, termination_reason
from tasks.worker.launch.processes import StopSignals

LIMITS = load_config().health


HOST = "i-0123456789abcdef0"


def code(failure: FailureClass) -> int:
    return POLICIES[failure].exit_code


def test_only_an_instance_of_ec2_leaves(store):
    for host in (HOST, "worker-7"):
        exclude(store, host, "ECC errors", "run", LIMITS, time.time())
    assert "ECC errors" in (termination_reason(store, HOST, 0.0, code(FailureClass.HOST)) or "")
    assert termination_reason(store, "worker-7", 0.0, code(FailureClass.HOST)) is None


@pytest.mark.parametrize("ended_with", [0, *(code(each) for each in (FailureClass.CONFIG, FailureClass.CANCELLED))])
def test_a_machine_stays_where_no_retry_follows(store, ended_with):
    exclude(store, HOST, "ECC errors", "run", LIMITS, time.time())
    assert termination_reason(store, HOST, 0.0, ended_with) is None


def test_a_record_that_can_not_be_read_keeps_the_machine(store, capsys):
    store.write(f"hosts/{HOST}.json", b"{")
    assert termination_reason(store, HOST, 0.0, code(FailureClass.HOST)) is None
    assert "so the machine stays" in capsys.readouterr().out


def test_a_refusal_is_a_warning_with_the_way_out(monkeypatch, capsys):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    terminate_machine(HOST, "ECC errors", StopSignals())
    said = capsys.readouterr().out
    assert "the next try gets another machine: ECC errors" in said
    assert f"aws ec2 terminate-instances --instance-ids {HOST}" in said
