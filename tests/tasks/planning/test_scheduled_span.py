"""Which span a scheduled run takes and which were missed, read from the workspace alone."""

import datetime as dt
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import RowsRef, SpanRef
from tasks.foundation.errors import ConfigError, DataError
from tasks.planning.next_run import due_span, missed, require_arrived, run_of
from tasks.runs import branches, lineage
from tests.support.fakes.fake_runner import ingest, small_config, write_checkpoint
from tests.support.workspace.states import checkpoint_state

MONDAY = dt.datetime(2026, 11, 23, 6, tzinfo=dt.UTC)
WEEKS = ("2026-W44", "2026-W45", "2026-W46", "2026-W47")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, *WEEKS)
    return store


def train(store: DirectoryStore, *names: str, lineage_name: str = "main") -> None:
    """One run over these spans."""
    head = lineage.head(store, lineage_name)
    rows = tuple(RowsRef(span=SpanRef(name=name, version=1), prefix="", rows=1) for name in names)
    consumed = (*(head[1].consumed if head else ()), *rows)
    step = 10 * len(consumed)
    parent = head[0] if head else None
    state = checkpoint_state(step, lineage=lineage_name, run_key=f"{step:016d}", consumed=consumed, parent=parent)
    write_checkpoint(store, state)


def test_the_due_span_follows_from_the_scheduled_time_and_the_spans_length(store: DirectoryStore) -> None:
    assert due_span(store, MONDAY, "UTC") == "2026-W47"
    assert due_span(store, MONDAY + dt.timedelta(days=70), "UTC") == "2027-W04"


def test_without_spans_nothing_can_be_due(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="millrace look FILE"):
        due_span(DirectoryStore(tmp_path), MONDAY, "UTC")


def test_spans_of_several_lengths_are_refused(store: DirectoryStore) -> None:
    ingest(store, "2026-10")
    with pytest.raises(ConfigError, match=r"several .*2026-10.*due"):
        due_span(store, MONDAY, "UTC")


def test_spans_after_the_last_trained_one_were_missed_oldest_first(store: DirectoryStore) -> None:
    train(store, "2026-W44")
    assert missed(store, small_config(), "2026-W46") == ["2026-W45", "2026-W46"]
    assert missed(store, small_config(), "2026-W51") == ["2026-W45", "2026-W46", "2026-W47"]
    assert missed(store, small_config(), "2026-W44") == []


def test_a_span_that_arrived_too_late_was_not_missed(store: DirectoryStore) -> None:
    train(store, "2026-W44")
    train(store, "2026-W46")
    assert missed(store, small_config(), "2026-W47") == ["2026-W47"]


def test_a_new_lineage_has_missed_nothing(store: DirectoryStore) -> None:
    assert missed(store, small_config(), "2026-W47") == []
    train(store, "2026-W44")
    assert missed(store, small_config("lineage=other"), "2026-W47") == []


def test_an_adopted_branch_decides_what_was_missed(store: DirectoryStore) -> None:
    train(store, "2026-W44")
    train(store, "2026-W45")
    train(store, "2026-W46")
    base = lineage.completed(store, "main")[0][0]
    branches.begin(store, "again", of="main", base=base)
    branches.adopt(store, "main", "again", instead_of="main")
    assert missed(store, small_config(), "2026-W46") == ["2026-W45", "2026-W46"]


def test_a_span_that_has_not_arrived_is_an_error_with_the_way_out(store: DirectoryStore) -> None:
    assert require_arrived(store, "2026-W47") == "2026-W47"
    with pytest.raises(DataError, match=r"W48 .* due .*W47\)\. Once"):
        require_arrived(store, "2026-W48")


def test_a_span_inside_the_first_run_belongs_to_the_run_of_its_last_span(store: DirectoryStore) -> None:
    train(store, "2026-W44", "2026-W45")
    train(store, "2026-W46")
    spans = [run_of(store, small_config(), name) for name in WEEKS]
    assert spans == ["2026-W45", "2026-W45", "2026-W46", "2026-W47"]
