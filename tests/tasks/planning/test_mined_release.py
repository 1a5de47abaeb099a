"""Which release a run mines for hard negatives."""

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import MinedRelease
from tasks.contracts.stages import Stage
from tasks.foundation.errors import StoreError
from tasks.planning.mined_release import mined_release
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

NEGATIVES = "heads.contrastive.negatives={per_query: 2}"


def mined_by(runner: FakeRunner) -> list[MinedRelease | None]:
    """What each training was given."""
    return [spec.inputs.mined for spec in runner.specs if isinstance(spec.inputs, TrainInputs)]


def test_a_run_mines_the_release_that_is_current_and_the_first_run_none(store: DirectoryStore, runner: FakeRunner):
    config = small_config(NEGATIVES)
    first = carry_out(plan_run(store, config)).released
    carry_out(plan_run(store, config))
    assert first is not None
    assert first.catalogue is not None
    release = MinedRelease(
        number=1,
        model=first.model,
        vectors=first.vectors_prefix,
        vectors_sha256=first.vectors_sha256,
        catalogue=first.catalogue,
    )
    assert mined_by(runner) == [None, release]


def test_a_run_without_hard_negatives_needs_no_release(store: DirectoryStore, runner: FakeRunner):
    carry_out(plan_run(store, small_config()))
    carry_out(plan_run(store, small_config()))
    assert mined_by(runner) == [None, None]


def test_a_run_that_goes_on_after_a_release_keeps_its_negatives(store: DirectoryStore, runner: FakeRunner):
    config = small_config(NEGATIVES)
    carry_out(plan_run(store, config))
    plan = plan_run(store, config)
    before = mined_release(store, plan)
    assert before is not None
    ingest_feed(store, "2021-01")
    refreshed(store)
    current = releases.current(store)
    assert current is not None
    assert current.number > before.number
    assert mined_release(store, plan) == before
    trainings = len([spec for spec in runner.specs if spec.stage is Stage.train])
    carry_out(plan)
    carry_out(plan)
    assert mined_by(runner)[trainings:] == [before], "trained once, with what it began with"


def test_a_release_that_cannot_be_read_stops_the_run(store: DirectoryStore, runner: FakeRunner):
    config = small_config(NEGATIVES)
    carry_out(plan_run(store, config))
    store.write("releases/1.json", b"{")
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        mined_release(store, plan_run(store, config))
