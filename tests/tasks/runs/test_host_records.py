import threading

import pytest

from configs.load import load_config
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs import host_records

LIMITS = load_config(None, ["health.strikes=2", "health.exclude_hours=24"]).health
NOW = 1_800_000_000.0
HOUR = 3600.0


def strike(store, host="i-1", at=NOW, reason="slow"):
    return host_records.strike(store, host, reason, "run", LIMITS, at)


def test_a_host_without_a_record_may_work(store):
    assert host_records.excluded(store, "i-1", NOW) is None
    assert host_records.known_hosts(store) == ()


def test_strikes_add_up_to_an_exclusion(store, golden):
    assert strike(store).exclusion is None
    assert host_records.excluded(store, "i-1", NOW) is None
    strike(store, at=NOW + HOUR, reason="busy")
    message = host_records.excluded(store, "i-1", NOW + 2 * HOUR) or ""
    golden(message)
    assert "millrace hosts --forgive i-1" in message
    assert host_records.excluded(store, "i-2", NOW) is None


def test_strikes_and_exclusions_expire(store):
    strike(store)
    assert strike(store, at=NOW + 24 * HOUR).exclusion is None
    strike(store, at=NOW + 25 * HOUR)
    assert host_records.excluded(store, "i-1", NOW + 48 * HOUR) is not None
    assert host_records.excluded(store, "i-1", NOW + 49 * HOUR) is None
    (record,) = host_records.known_hosts(store)
    assert len(record.strikes) == 2
    assert record.live(NOW + 100 * HOUR) == host_records.HostRecord(host="i-1")


def test_a_host_is_given_up_when_excluded_or_struck_since(store, monkeypatch):
    monkeypatch.setattr(host_records.time, "time", lambda: NOW + HOUR)
    assert host_records.given_up(store, "i-1", NOW) is None
    strike(store, at=NOW + 1)
    assert host_records.given_up(store, "i-1", NOW) == "slow"
    assert host_records.given_up(store, "i-1", NOW + 2) is None, "that strike is another attempt's"
    strike(store, at=NOW + 1)
    assert "is excluded until" in (host_records.given_up(store, "i-1", NOW + 2) or "")


def test_an_exclusion_needs_no_strikes_and_a_strike_does_not_change_it(store):
    host_records.exclude(store, "i-1", "ECC errors", "run", LIMITS, NOW)
    for _ in range(3):
        strike(store, at=NOW + HOUR)
    (record,) = host_records.known_hosts(store)
    assert record.exclusion is not None
    assert (record.exclusion.reason, record.exclusion.until) == ("ECC errors", NOW + 24 * HOUR)


def test_forgiving_deletes_the_record(store):
    strike(store)
    host_records.exclude(store, "i-1", "ECC errors", "run", LIMITS, NOW)
    strike(store, host="i-2")
    host_records.forgive(store, "i-1")
    assert host_records.excluded(store, "i-1", NOW) is None
    assert [record.host for record in host_records.known_hosts(store)] == ["i-2"]
    with pytest.raises(ConfigError, match=r"'i-1' .*there are: i-2"):
        host_records.forgive(store, "i-1")


@pytest.mark.parametrize("host", ["../../etc", "a/b", "10.0.0.1:80", "müller"])
def test_a_host_with_any_name_has_one_file(store, host):
    strike(store, host=host)
    assert len(store.list("hosts")) == 1
    assert [record.host for record in host_records.known_hosts(store)] == [host]
    host_records.forgive(store, host)
    assert store.list("hosts") == []


def test_simultaneous_strikes_are_all_counted(store):
    many = LIMITS.model_copy(update={"strikes": 100})
    writers = [
        threading.Thread(target=host_records.strike, args=(store, "i-1", f"reason {number}", "run", many, NOW))
        for number in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    (record,) = host_records.known_hosts(store)
    assert sorted(each.reason for each in record.strikes) == [f"reason {number}" for number in range(8)]


class AlwaysChanged(DirectoryStore):
    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        raise Conflict("changed")


def test_a_record_that_others_always_change_is_an_error(tmp_path):
    with pytest.raises(StoreError, match=r"hosts/i-1\.json .*20"):
        strike(AlwaysChanged(tmp_path))


def test_a_damaged_record_is_named_and_can_be_forgiven(store):
    store.write("hosts/i-1.json", b"{")
    with pytest.raises(StoreError, match=r"hosts/i-1\.json .*delete"):
        host_records.excluded(store, "i-1", NOW)
    host_records.forgive(store, "i-1")
    assert host_records.excluded(store, "i-1", NOW) is None


def test_a_machine_is_rented_if_the_launcher_names_it(monkeypatch):
    monkeypatch.setenv("MILLRACE_HOST", "i-1")
    assert (host_records.this_host(), host_records.handed_out()) == ("i-1", True)
    monkeypatch.delenv("MILLRACE_HOST")
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    assert (host_records.this_host(), host_records.handed_out()) == ("laptop", False)
