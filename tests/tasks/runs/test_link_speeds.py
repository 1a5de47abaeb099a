from infra.store.base import Conflict
from tasks.runs.host_records import known_hosts
from tasks.runs.link_speeds import ENOUGH, KEPT, read_speeds, remember_speeds

RATES = {"all_reduce_latency_us": 500.0, "all_reduce_gb_s": 16.0, "all_reduce_bus_gb_s": 30.0}


def remember(store, runs: int, nodes: int = 2, **changed: float) -> None:
    for _ in range(runs):
        remember_speeds(store, "trn1.32xlarge", nodes, RATES | changed)


def test_limits_are_learnt_from_enough_runs_on_as_many_machines(store):
    remember(store, ENOUGH - 1)
    remember(store, ENOUGH, nodes=16)
    assert read_speeds(store, "trn1.32xlarge", 2).limits is None
    assert read_speeds(store, "trn1n.32xlarge", 2).runs == ()
    remember(store, 1, all_reduce_bus_gb_s=1.0)
    limits = read_speeds(store, "trn1.32xlarge", 2).limits
    assert limits == {"all_reduce_latency_us": 1000.0, "all_reduce_bus_gb_s": 15.0}, "one odd run does not move them"


def test_the_newest_runs_count(store):
    remember(store, KEPT)
    remember(store, KEPT, all_reduce_bus_gb_s=60.0)
    known = read_speeds(store, "trn1.32xlarge", 2)
    assert len(known.runs) == KEPT
    assert (known.limits or {})["all_reduce_bus_gb_s"] == 30.0


def test_a_run_that_writes_at_the_same_moment_as_another_is_left_out(store, monkeypatch):
    remember(store, 1)

    def taken(key: str, data: bytes, expected: bytes | None) -> None:
        raise Conflict(key)

    monkeypatch.setattr(store, "swap", taken)
    remember(store, 1)
    assert len(read_speeds(store, "trn1.32xlarge", 2).runs) == 1


def test_a_record_of_speeds_is_no_host(store):
    remember(store, 1)
    assert known_hosts(store) == ()
