import pytest

from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import plan_run
from tasks.runs.plan import find_run, read_plan, run_key, save_plan
from tests.support.fakes.fake_runner import ingest, small_config


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, "2021-Q1", "2021-Q2")
    return store


def spans(*names: str, version: int = 1) -> tuple[SpanRef, ...]:
    return tuple(SpanRef(name=name, version=version) for name in names)


def test_the_run_key_changes_with_each_part_of_the_work():
    parent = CheckpointRef(prefix="lineages/main/step-00000010", step=10, sha256="a" * 64)
    other = parent.model_copy(update={"sha256": "b" * 64})
    window = spans("2021-Q1", "2021-Q2")
    keys = {
        run_key(small_config(), window, parent),
        run_key(small_config(), window, other),
        run_key(small_config(), window, None),
        run_key(small_config(), window[1:], parent),
        run_key(small_config(), window[:1], parent),
        run_key(small_config(), spans("2021-Q1", "2021-Q2", version=2), parent),
        run_key(small_config("train.epochs=2"), window, parent),
        run_key(small_config("pipeline=shoes"), window, parent),
    }
    assert len(keys) == 8
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)


def test_the_run_key_does_not_depend_on_how_settings_were_spelled():
    window = spans("2021-Q1")
    spelled = small_config("train.learning_rate=0.00005")
    assert run_key(spelled, window, None) == run_key(small_config("train.learning_rate=5e-5"), window, None)


def test_a_saved_plan_and_its_configuration_read_back(store):
    plan = plan_run(store, small_config("train.epochs=3"))
    save_plan(store, plan)
    save_plan(store, plan)
    assert read_plan(store, plan.run_key) == plan == plan_run(store, small_config("train.epochs=3"))
    assert b"epochs: 3" in store.read(f"runs/{plan.run_key}/config.yaml")


def test_a_run_is_found_by_the_beginning_of_its_key_if_no_other_begins_so(store):
    plan = plan_run(store, small_config())
    for key in ("cafe0000", "cafe", "beef0000"):
        save_plan(store, plan.model_copy(update={"run_key": key}))
    assert [find_run(store, name) for name in ("b", "cafe0", "cafe")] == ["beef0000", "cafe0000", "cafe"]
    with pytest.raises(ConfigError, match="'caf': cafe, cafe0000;"):
        find_run(store, "caf")
    for name in ("", "f"):
        with pytest.raises(ConfigError, match=r"millrace history"):
            find_run(store, name)


def test_another_plan_under_the_same_key_is_refused(store):
    plan = plan_run(store, small_config())
    save_plan(store, plan)
    with pytest.raises(Conflict, match="holds another plan"):
        save_plan(store, plan.model_copy(update={"span": SpanRef(name="2021-Q2", version=1)}))
    assert read_plan(store, plan.run_key) == plan
