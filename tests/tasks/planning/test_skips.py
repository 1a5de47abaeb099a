import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import SpanRef
from tasks.foundation.errors import ConfigError
from tasks.planning.decisions import skip, skips, spans_to_train
from tasks.planning.next_run import missed, plan_run
from tasks.runs.plan import NothingToDo
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.workspace.states import rejected, released

MONTHS = ("2026-06", "2026-07", "2026-08")


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, *MONTHS)
    return store


def test_a_skipped_span_is_left_out_of_all_that_is_planned(store):
    released(store, plan_run(store, small_config()))
    made = skip(store, small_config(), "2026-07", "five rows")
    assert skip(store, small_config(), "2026-07", " five rows ") == made
    assert list(skips(store, "main").items()) == [(made.span, made)]
    assert plan_run(store, small_config()).window == (SpanRef(name="2026-08", version=1),)
    assert missed(store, small_config(), "2026-08") == ["2026-08"]
    with pytest.raises(NothingToDo, match=r"2026-07 v1 .*five rows"):
        plan_run(store, small_config(), "2026-07")
    with pytest.raises(ConfigError, match=r"2026-07 v1 .*five rows"):
        spans_to_train(store, "main", "2026-07")


def test_a_lineage_begins_after_what_it_skips(store):
    skip(store, small_config(), "2026-06", "a test export")
    assert plan_run(store, small_config(), "2026-08").window == tuple(
        SpanRef(name=name, version=1) for name in MONTHS[1:]
    )
    for name in MONTHS[1:]:
        skip(store, small_config(), name, "a test export")
    with pytest.raises(NothingToDo, match="2026-06, 2026-07, 2026-08"):
        plan_run(store, small_config())


def test_a_corrected_version_is_not_skipped(store):
    released(store, plan_run(store, small_config()))
    skip(store, small_config(), "2026-07", "five rows")
    ingest(store, "2026-07", version=2)
    assert plan_run(store, small_config()).window == (SpanRef(name="2026-07", version=2),)


def test_a_rejected_span_may_be_skipped_and_one_in_the_weights_may_not(store):
    released(store, plan_run(store, small_config()))
    rejected(store, plan_run(store, small_config()))
    skip(store, small_config(), "2026-07", "its export is broken")
    plan = plan_run(store, small_config())
    assert plan.window == (SpanRef(name="2026-08", version=1),)
    released(store, plan)
    for name in ("2026-06", "2026-08"):
        with pytest.raises(ConfigError, match=f"main has .*{name} v1"):
            skip(store, small_config(), name, "too late")


def test_branches_skip_what_their_lineage_skips_and_other_lineages_do_not(store):
    released(store, plan_run(store, small_config()))
    rejected(store, plan_run(store, small_config()))
    on_branch = plan_run(store, small_config())
    released(store, on_branch)
    ingest(store, "2026-09")
    skip(store, small_config(), "2026-09", "five rows")
    assert [span.name for span in skips(store, on_branch.config.lineage)] == ["2026-09"]
    assert plan_run(store, small_config("lineage=other"), "2026-09").window[-1].name == "2026-09"


def test_a_skip_needs_a_reason_and_keeps_it(store):
    with pytest.raises(ConfigError, match="why 2026-06 is"):
        skip(store, small_config(), "2026-06", "  ")
    skip(store, small_config(), "2026-06", "five rows")
    with pytest.raises(ConfigError, match=r"five rows.*/2026-06-v1\.json"):
        skip(store, small_config(), "2026-06", "another")
    with pytest.raises(ConfigError, match="'2027-06' was not"):
        skip(store, small_config(), "2027-06", "why not")
