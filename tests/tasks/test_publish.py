from __future__ import annotations

import threading

import pytest

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks import publish
from tasks.contracts.jobs import PublishInputs
from tasks.contracts.runs import Release
from tasks.contracts.stages import Chore
from tasks.foundation.errors import CancelledError, CodeError, StoreError
from tasks.publish import publish_release, publish_to_all, swap_back
from tasks.runs import ledger, served_targets
from tests.support.fakes.fake_runner import small_config
from tests.support.workspace.releases import make_current, write_release

TWO = "publish.targets=[{kind: lancedb, name: look, uri: l}, {kind: qdrant, name: shop, url: q}]"


@pytest.fixture
def config() -> Config:
    return small_config(TWO)


@pytest.fixture
def release(store: DirectoryStore) -> Release:
    return write_release(store, 1)


def test_each_target_is_a_job_of_its_own_and_on_record(store, runner, config, release):
    look, shop = publish_to_all(store, config, release, True)
    assert [spec.run_key for spec in runner.specs] == ["publish-1-look", "publish-1-shop"]
    inputs = runner.specs[0].inputs
    assert isinstance(inputs, PublishInputs)
    assert (inputs.vectors, inputs.model_version) == (release.vectors_prefix, release.model.version)
    assert served_targets.of_all_targets(store) == (look, shop)
    assert (look.release, look.table, look.model_version, look.recall) == (1, "look_r1_00000000", "main-00000001", 1.0)
    (record,) = ledger.records(store, "publish-1-look")
    assert (record.stage, record.failure) == (Chore.publish, None)


def test_a_target_that_the_settings_lack_is_named(store, runner, config, release, caplog):
    publish_to_all(store, config, release, True)
    runner.specs.clear()
    plan = publish._plan(store, small_config(), release, config.publish.targets[0])
    with caplog.at_level("WARNING"):
        publish_release(store, plan, release)
    assert "publish.targets does not" in caplog.text
    assert runner.specs == []


def test_a_rollback_swaps_all_targets_before_any_is_checked(store, runner, config, release, caplog):
    publish_to_all(store, config, release, True)
    later = write_release(store, 2)
    publish_to_all(store, config, later, True)
    make_current(store, release)
    runner.tables.discard("shop_r1_00000000")  # dropped since
    runner.specs.clear()
    with caplog.at_level("WARNING"):
        swap_back(store, config, release)
    assert runner.served == {"look": "look_r1_00000000", "shop": "shop_r2_00000000"}
    assert {each.target.name: each.release for each in served_targets.of_all_targets(store)} == {"look": 1, "shop": 2}
    assert "look serves release 1" in caplog.text
    assert "of release 1 any more" in caplog.text
    publish_to_all(store, config, release, True)
    assert runner.served == {"look": "look_r1_00000000", "shop": "shop_r1_00000000"}


def test_a_target_that_can_not_be_swapped_at_once_does_not_stop_the_others(store, runner, config, release, caplog):
    publish_to_all(store, config, release, True)
    publish_to_all(store, config, write_release(store, 2), True)
    make_current(store, release)
    runner.fail(Chore.publish, CodeError("a bug"))
    swap_back(store, config, release)
    assert runner.served == {"look": "look_r2_00000000", "shop": "shop_r1_00000000"}
    assert "not swapped at once" in caplog.text


def test_another_model_is_announced_while_a_target_swaps_to_it(store, runner, config, release, monkeypatch):
    publish_to_all(store, config, release, True)
    seen, run = [], runner.run

    def watched(*given):
        seen.append([each.coming for each in served_targets.of_all_targets(store)])
        return run(*given)

    monkeypatch.setattr(runner, "run", watched)
    publish_to_all(store, config, release, True)
    publish_to_all(store, config, write_release(store, 2), True)
    assert seen == [[None, None]] * 2 + [[2, None], [None, 2]]
    runner.fail(Chore.publish, StoreError("disk on fire"))
    with pytest.raises(StoreError):
        publish_to_all(store, config, write_release(store, 3), False)
    assert seen[4:] == [[3, None], [None, 3]]
    assert [each.coming for each in served_targets.of_all_targets(store)] == [None, None]


def test_a_second_publication_asks_the_target_again(store, runner, config, release):
    publish_to_all(store, config, release, True)
    runner.served.clear()  # somebody emptied it
    publish_to_all(store, config, release, True)
    assert [spec.attempt for spec in runner.specs if spec.run_key == "publish-1-look"] == [1, 2]
    assert runner.served["look"] == "look_r1_00000000"


def test_what_a_lost_waiter_left_is_not_taken_for_an_answer(store, runner, config, release, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as lost:
        lost.setattr(DirectoryStore, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            publish_to_all(store, config, release, True)  # its result stays
    runner.served.clear()
    publish_to_all(store, config, release, True)
    assert runner.served["look"] == "look_r1_00000000"


def test_a_target_that_fails_does_not_stop_the_others_and_keeps_what_it_serves(store, runner, config, release, golden):
    publish_to_all(store, config, release, True)
    second = write_release(store, 2)
    runner.fail(Chore.publish, StoreError("lancedb look (l): disk on fire"))
    with pytest.raises(StoreError) as caught:
        publish_to_all(store, config, second, True)
    lines = str(caught.value).splitlines()
    golden(lines, hide=r"in \S+ s|--workspace .*")
    assert f"millrace publish --workspace {store.uri}" in lines[2]
    assert [each.release for each in served_targets.of_all_targets(store)] == [1, 2]
    publish_to_all(store, config, second, True)
    assert [each.release for each in served_targets.of_all_targets(store)] == [2, 2]


def test_a_cancellation_stops_at_once(store, runner, config, release):
    runner.fail(Chore.publish, CancelledError("stop"))
    with pytest.raises(CancelledError):
        publish_to_all(store, config, release, True)
    assert [spec.run_key for spec in runner.specs] == ["publish-1-look"]


def test_a_release_that_is_not_current_leaves_the_record_as_it_was(store, runner, config, release):
    second = write_release(store, 2)
    publish_to_all(store, config, second, True)
    assert publish_to_all(store, config, release, True) == ()
    assert [each.release for each in served_targets.of_all_targets(store)] == [2, 2]
    assert [each.release for each in publish_to_all(store, config, release, False)] == [1, 1]


def test_two_publications_to_a_target_wait_for_each_other(store, runner, config, release, monkeypatch):
    monkeypatch.setattr(publish, "ASK_SECONDS", 0.05)
    make_current(store, release)
    done = threading.Event()
    other = threading.Thread(target=lambda: (publish_to_all(store, config, release, True), done.set()))
    with store.lock(served_targets.lock_of("look")):
        other.start()
        assert not done.wait(0.5)
        assert runner.specs == []
    other.join(20)
    assert done.is_set()
    assert len(runner.specs) == 2
