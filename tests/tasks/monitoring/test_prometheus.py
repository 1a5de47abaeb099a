"""The metrics for Prometheus, read back with its own parser."""

import datetime as dt
import math
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import FailureClass
from tasks.monitoring.problems import Kind
from tasks.monitoring.prometheus import metrics_text
from tasks.runs import branches
from tests.support.fakes.fake_runner import ingest, ingest_feed
from tests.support.workspace.past import settings, write_run

AT = dt.datetime(2026, 1, 20, tzinfo=dt.UTC)  # eight days after the end of the second week
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Two releases, of which the second was tried twice, and a run that failed."""
    store = DirectoryStore(tmp_path)
    write_run(store, 0)
    write_run(store, 1, retried=FailureClass.HANG)
    write_run(store, 2, "Failed", FailureClass.OOM)
    return store


def samples(text: bytes) -> Samples:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_every_metric_has_a_name_a_type_and_a_description(store: DirectoryStore) -> None:
    families = list(text_string_to_metric_families(metrics_text(store, AT).decode()))
    assert len(families) > 25
    for family in families:
        assert family.name.startswith("millrace_")
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter")
    names = [family.name for family in families]
    assert len(names) == len(set(names))


def test_freshness_is_given_in_seconds_and_as_timestamps(store: DirectoryStore) -> None:
    found = samples(metrics_text(store, AT))
    assert value(found, "millrace_freshness_age_seconds") == 8 * 86400
    assert AT.timestamp() - value(found, "millrace_release_data_end_timestamp_seconds") == 8 * 86400
    assert value(found, "millrace_freshness_target_seconds") == 336 * 3600
    assert value(found, "millrace_exposition_timestamp_seconds") == AT.timestamp()


def test_the_catalogue_has_an_age_and_a_coverage(store: DirectoryStore) -> None:
    found = samples(metrics_text(store, AT))
    assert value(found, "millrace_catalogue_age_seconds") == 0
    assert value(found, "millrace_catalogue_target_seconds") == 3 * 3600
    assert value(found, "millrace_release_coverage_ratio") == 1
    ingest_feed(store, "2026-01", at="2026-01-19T22:00:00+00:00")
    found = samples(metrics_text(store, AT))
    assert value(found, "millrace_catalogue_age_seconds") == 2 * 3600
    assert value(found, "millrace_catalogue_waiting_sources") == 1


def test_runs_and_attempts_are_counted_by_state_and_class(store: DirectoryStore) -> None:
    found = samples(metrics_text(store, AT))
    assert value(found, "millrace_runs", state="released") == 2
    assert value(found, "millrace_runs", state="failed") == 1
    assert value(found, "millrace_runs", state="rejected") == 0  # there from the start, so that a rate can be taken
    assert value(found, "millrace_run_success_ratio") == pytest.approx(2 / 3)
    by_class = {dict(labels)["class"]: n for (name, labels), n in found.items() if name == "millrace_attempts_total"}
    assert set(by_class) == {"OK", *FailureClass}
    assert {name: count for name, count in by_class.items() if count} == {"OK": 16, "HANG": 1, "OOM": 1}


def test_phases_add_up_to_the_goodput(store: DirectoryStore) -> None:
    found = samples(metrics_text(store, AT))
    phases = {labels: n for (name, labels), n in found.items() if name == "millrace_attempt_seconds_total"}
    productive = value(found, "millrace_attempt_seconds_total", phase="productive")
    queued = value(found, "millrace_attempt_seconds_total", phase="queued")
    assert value(found, "millrace_goodput_ratio") == pytest.approx(productive / (sum(phases.values()) - queued))
    of_last = [n for (name, _), n in found.items() if name == "millrace_last_run_stage_seconds"]
    assert 0 < sum(of_last) < sum(phases.values())


def test_the_last_run_and_the_release_are_named(store: DirectoryStore) -> None:
    found = samples(metrics_text(store, AT))
    assert value(found, "millrace_release_number") == 2
    of = {
        name: value(found, "millrace_release_quality", metric="recall@10", queries=name)
        for name in ("unseen", "seen", "all")
    }
    assert of["unseen"] < 0.3 < of["all"] <= of["seen"]
    info = next(dict(labels) for name, labels in found if name == "millrace_last_run_info")
    assert (info["span"], info["state"], info["class"]) == ("2026-W03", "failed", "OOM")
    assert value(found, "millrace_last_run_success") == 0


def test_a_workspace_without_runs_has_zeroes_and_no_age(tmp_path: Path) -> None:
    found = samples(metrics_text(DirectoryStore(tmp_path), AT))
    assert value(found, "millrace_attempts_total", **{"class": "HOST"}) == 0
    assert value(found, "millrace_releases") == 0
    assert not any(name.startswith(("millrace_freshness_age", "millrace_last_run")) for name, _ in found)
    assert not any(math.isnan(number) for number in found.values())


def test_unreadable_records_are_counted(store: DirectoryStore) -> None:
    store.write("releases/1.json", b"{")
    found = samples(metrics_text(store, AT))
    assert value(found, "millrace_unreadable_records") == 1
    assert value(found, "millrace_releases") == 2, "it was made, though it can't be read"


def test_a_name_with_quotes_does_not_break_the_text(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    key = write_run(store, 0)
    plan = store.read(f"runs/{key}/plan.json").decode()
    store.write(f"runs/{key}/plan.json", plan.replace('"name": "2026-W01"', '"name": "a\\"b\\\\c"').encode())
    found = samples(metrics_text(store, AT))
    assert any(dict(labels).get("span") == 'a"b\\c' for name, labels in found if name == "millrace_last_run_info")


def test_problems_are_counted_by_kind(store: DirectoryStore) -> None:
    found = samples(metrics_text(store, AT))
    by_kind = {dict(labels)["kind"]: number for (name, labels), number in found.items() if name == "millrace_problems"}
    assert {kind.replace(" ", "_") for kind in get_args(Kind)} == set(by_kind)
    assert {kind for kind, number in by_kind.items() if number} == {"failed"}


def test_an_unreadable_lineage_leaves_the_other_numbers(store: DirectoryStore) -> None:
    ingest(store, "2026-01-05")  # a day among weeks
    found = samples(metrics_text(store, AT))
    assert not any(name == "millrace_problems" for name, _ in found)
    assert value(found, "millrace_release_number") == 2


def test_a_backfill_does_not_change_the_lineages_problems(store: DirectoryStore) -> None:
    branches.begin(store, "main-2", of="main", base=None)
    write_run(store, 3, config=settings().model_copy(update={"lineage": "main-2"}))
    assert value(samples(metrics_text(store, AT)), "millrace_problems", kind="failed") == 1
