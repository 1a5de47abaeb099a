"""The freshness of the vectors and its problems, with daily spans trained at six in Berlin."""

from pathlib import Path

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from infra.store.lease import Lease
from tasks.contracts.runs import RunState
from tasks.contracts.stages import Stage
from tasks.laboratory.weekly import decide
from tasks.monitoring import progress
from tasks.monitoring.problems import named, together
from tasks.monitoring.progress import ROWS
from tasks.planning.decisions import Action, overrule, skip
from tasks.planning.next_run import plan_run
from tasks.running.lineage_lock import confirm_lineages, hold_lineage
from tasks.runs import invocations, ledger
from tasks.runs.rollback import rollback
from tests.support.cloud.s3 import Fault, S3Server
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest
from tests.support.fakes.stages import carry_out
from tests.tasks.monitoring.looks import days, locked, look, problem, problems_of, recorded_run, row, train


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


# --- rows and age -------------------------------------------------------------------------------------------------


def test_a_row_has_the_times_of_its_span_from_arrival_to_release(store, runner: FakeRunner, config, golden):
    commit_files(
        store, "spans/2026-11-12/v1", {"p": "x"}, "span", rows=40, ingested_at="2026-11-13T03:12:00.000000+00:00"
    )
    plan = plan_run(store, config)
    carry_out(plan)
    report = look(store, config)
    one = row(report, "2026-11-12")
    ended = {record.stage: record.ended_at for record in ledger.records(store, plan.run_key)}
    assert one.state == "Released"
    assert one.arrived_at == "2026-11-13T03:12:00.000000+00:00"
    assert (one.validated_at, one.trained_at) == (ended[Stage.validate], ended[Stage.train])
    assert (one.evaluated_at, one.embedded_at) == (ended[Stage.evaluate], ended[Stage.infer])
    assert one.released_at == ended[Stage.release]
    assert (one.version, one.trained_version, one.run_key) == (1, 1, plan.run_key)
    assert one.ends_at == "2026-11-13T00:00:00+00:00"
    assert report.problems == ()
    golden(report.sentence)


def test_the_age_counts_from_the_end_of_the_newest_released_span(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    report = look(store, config)
    assert (report.release, report.newest, report.age_hours) == (2, "2026-11-12", 6.0)
    assert (report.newest_ended_at, report.stale_at) == ("2026-11-13T00:00:00+00:00", "2026-11-14T12:00:00+00:00")
    assert not report.stale


def test_vectors_are_stale_after_the_target_and_the_missing_span_is_named(store, runner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    assert not look(store, config, "2026-11-14T12:00:00+00:00").stale
    report = look(store, config, "2026-11-14T12:00:01+00:00")
    assert report.stale
    assert "because 2026-11-13 " in problem(report, "stale").sentence
    assert problem(report, "stale").way_out.endswith("millrace ingest")


def test_a_rejected_span_is_no_problem_until_the_vectors_are_stale(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    train(store, config, "2026-11-12")
    report = look(store, config, "2026-11-13T07:00:00+00:00")
    assert row(report, "2026-11-12").state == "Rejected"
    assert (report.newest, report.problems) == ("2026-11-11", ())
    late = look(store, config, "2026-11-13T12:30:00+00:00")
    assert "2026-11-12 was rejected" in problem(late, "stale").sentence
    assert "millrace report --span 2026-11-12" in problem(late, "stale").way_out


def test_a_run_that_trains_a_rejected_span_again_is_seen(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    plan = recorded_run(store, config, "2026-11-12")  # on a branch that runs do not continue yet
    with locked(store):
        report = look(store, config)
    assert [row(report, span).state for span in ("2026-11-11", "2026-11-12")] == ["Rejected", "Running"]
    runner.metrics = {"recall@10": 0.5, "mrr@10": 0.3}
    carry_out(plan)
    report = look(store, config)
    assert (report.continues, report.missed) == (plan.config.lineage, ())
    for span in ("2026-11-11", "2026-11-12"):
        assert (row(report, span).state, row(report, span).run_key) == ("Released", plan.run_key)


def test_a_version_that_was_never_trained_is_not_released(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    ingest(store, "2026-11-12", version=2)
    one = row(look(store, config), "2026-11-12")
    assert (one.state, one.version, one.trained_version) == ("Corrected", 2, 1)
    late = look(store, config, "2026-11-14T12:00:01+00:00")
    assert problem(late, "corrected").spans == ("2026-11-12",)


@pytest.mark.parametrize(("recall", "because"), [(0.5, "released"), (0.1, "rejected")])
def test_a_new_version_is_not_the_reason_of_old_vectors(store, runner: FakeRunner, config, recall, because):
    train(store, config, "2026-11-11")
    runner.metrics = {"recall@10": recall, "mrr@10": recall}
    train(store, config, "2026-11-12")
    if recall == 0.5:
        rollback(store, to=1)
    ingest(store, "2026-11-12", version=2)
    stale = problem(look(store, config, "2026-11-14T12:00:01+00:00"), "stale")
    assert f"2026-11-12 was {because}" in stale.sentence
    assert "backfill" not in stale.way_out


def test_a_skipped_span_is_known_with_its_reason_and_not_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10")
    ingest(store, "2026-11-11", "2026-11-12")
    skip(store, config, "2026-11-11", "five rows")
    train(store, config, "2026-11-12")
    report = look(store, config)
    assert (row(report, "2026-11-11").state, row(report, "2026-11-11").message) == ("Skipped", "five rows")
    assert problems_of(report) == [("skipped", ("2026-11-11",))]
    assert "2026-11-11 v1 is skipped" in problem(report, "skipped").sentence


def test_a_span_that_waits_by_a_decision_is_known_and_not_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10")
    ingest(store, "2026-11-11")
    deciding = config.model_copy(update={"decide": config.decide.model_copy(update={"scheduled": True})})
    overrule(store, decide(store, deciding), Action.skip, "nothing new")
    report = look(store, deciding)
    assert (row(report, "2026-11-11").state, report.missed, report.catch_up) == ("Postponed", (), None)
    assert "nothing new" in problem(report, "postponed").sentence
    assert row(look(store, config), "2026-11-11").state == "Missed"


def test_a_workspace_without_spans_or_without_a_release_is_a_problem(store, runner: FakeRunner, config):
    empty = look(store, config)
    assert (empty.due, empty.spans, problems_of(empty)) == (None, (), [("not arrived", ())])
    ingest(store, "2026-11-11", "2026-11-12")
    begun = look(store, config)
    assert problems_of(begun) == [("unreleased", ())]
    assert [one.state for one in begun.spans] == ["Arrived", "Arrived"]


def test_only_the_newest_spans_have_rows(store, config):
    spans = days("2026-08-01", "2026-11-12")
    ingest(store, *spans)
    report = look(store, config)
    assert [one.span for one in report.spans] == spans[-ROWS:]
    assert report.older == len(spans) - ROWS


# --- what the lineage has gone past -------------------------------------------------------------------------------


def test_late_corrected_and_missing_spans_are_reported_as_not_urgent(store, runner: FakeRunner, config):
    train(store, config, "2026-11-08")
    train(store, config, "2026-11-11", "2026-11-12")
    ingest(store, "2026-11-09")
    commit_files(store, "spans/2026-11-11/v2", {"p": "more"}, "span", rows=41)
    report = look(store, config)
    assert problems_of(report) == [
        ("hole", ("2026-11-10",)),
        ("too late", ("2026-11-09",)),
        ("corrected", ("2026-11-11",)),
    ]
    assert report.urgent == ()
    assert "--from 2026-11-11 --to 2026-11-12" in problem(report, "corrected").way_out
    assert (row(report, "2026-11-11").version, row(report, "2026-11-11").trained_version) == (2, 1)


# --- sturdiness ---------------------------------------------------------------------------------------------------


def test_a_damaged_record_leaves_a_blank_in_its_row(store, runner: FakeRunner, config):
    train(store, config, "2026-11-12")
    key = plan_run(store, config, "2026-11-12").run_key
    store.write(f"runs/{key}/train/attempt-1/ledger.json", b"{}")
    store.write(f"runs/{key}/invocations/1.json", b"{}")
    report = look(store, config)
    assert (row(report, "2026-11-12").trained_at, row(report, "2026-11-12").state) == (None, "Released")


def test_looking_writes_nothing(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")
    before = {key: store.read(key) for key in store.list("") if not key.startswith(".locks/")}
    look(store, config)
    assert {key: store.read(key) for key in store.list("") if not key.startswith(".locks/")} == before


def test_a_reader_without_write_access_sees_what_runs(store, runner: FakeRunner, config, monkeypatch):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")

    def refused(*arguments: object):
        raise PermissionError(13, "Permission denied", *arguments)

    reader = DirectoryStore(store.root)
    for method in ("write", "create", "swap", "upload", "move", "delete", "lock"):
        monkeypatch.setattr(reader, method, refused)
    with locked(store):
        assert row(look(reader, config), "2026-11-12").state == "Running"
    assert row(look(reader, config), "2026-11-12").state == "Lost"
    monkeypatch.setattr(reader, "peek", refused)
    assert row(look(reader, config), "2026-11-12").state == "Running"  # none is lost without proof


def test_looking_at_a_run_whose_lease_expired_leaves_it_the_lineage(s3: S3Server, config):
    """In a bucket, with credentials that may only read."""
    bucket = open_store(s3.new_workspace())
    ingest(bucket, "2026-11-12")
    recorded_run(bucket, config, "2026-11-12")
    key = ".locks/lineages/main.run"
    with hold_lineage(bucket, "lineages/main.run", print):
        lease = Lease.model_validate_json(bucket.read(key))
        assert row(look(bucket, config), "2026-11-12").state == "Running"
        bucket.write(key, lease.model_copy(update={"until": 0.0}).to_json())  # the machine stood still for that long
        s3.faults = [Fault(method, 403, "AccessDenied") for method in ("PUT", "POST", "DELETE")]
        assert row(look(bucket, config), "2026-11-12").state == "Lost"
        assert len(s3.faults) == 3
        s3.faults.clear()
        confirm_lineages()
    assert bucket.peek("lineages/main.run") is None


def test_a_bucket_gives_the_same_states(s3, config, monkeypatch):
    bucket = open_store(s3.new_workspace())
    fake = FakeRunner(bucket)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: fake)
    ingest(bucket, "2026-11-11", "2026-11-12", "2026-11-13")
    carry_out(plan_run(bucket, config))
    recorded_run(bucket, config, "2026-11-12")
    at = "2026-11-14T07:00:00+01:00"
    with bucket.lock("lineages/main.run"):
        states = [one.state for one in look(bucket, config, at).spans]
    assert states == ["Released", "Running", "Missed"]
    report = look(bucket, config, at)
    assert [one.state for one in report.spans] == ["Released", "Lost", "Missed"]
    assert report.missed == ("2026-11-12", "2026-11-13")


class Watched(DirectoryStore):
    """Remembers what was read and listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.keys: list[str] = []

    def read(self, key: str) -> bytes:
        self.keys.append(key)
        return super().read(key)

    def list(self, prefix: str) -> list[str]:
        self.keys.append(f"{prefix}/")
        return super().list(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        self.keys.append(f"{prefix}/")
        return super().sizes(prefix)


def test_a_span_with_far_fewer_rows_than_usual_is_named_until_the_next_one_comes(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10", "2026-11-11")
    commit_files(store, "spans/2026-11-12/v1", {"p": "x"}, "span", rows=9)
    found = problem(look(store, config), "few rows")
    assert (found.spans, found.urgent) == (("2026-11-12",), False)
    assert "9 rows, 22.5%" in found.sentence
    carry_out(plan_run(store, config))
    ingest(store, "2026-11-13")
    assert "few rows" not in {each.kind for each in look(store, config).problems}


def test_spans_of_long_ago_are_not_read(store, runner: FakeRunner, config, monkeypatch):
    monkeypatch.setattr(progress, "ROWS", 2)
    for span in days("2026-11-09", "2026-11-12"):
        ingest(store, span)
        plan = plan_run(store, config)
        one = invocations.begin(store, plan)
        carry_out(plan)
        invocations.end(store, one, RunState.RELEASED)
    watched = Watched(store.root)
    look(watched, config)
    assert sum(key.endswith("/ledger.json") for key in watched.keys) == 2 * 5
    assert sum("/invocations/" in key for key in watched.keys) == 2
    assert [key for key in watched.keys if key.startswith("runs/") and key.endswith("/")] == ["runs/"]
    assert not [key for key in watched.keys if "2026-11-10" in key or "step-00000010" in key]


def test_spans_in_a_row_are_named_together():
    groups = list(together(["2026-11-30", "2026-12-01", "2026-11-27"]))
    assert [named(group) for group in groups] == ["2026-11-27", "2026-11-30 to 2026-12-01 (2 spans)"]
