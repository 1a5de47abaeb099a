from __future__ import annotations

import pytest

from tasks.contracts.stages import Chore
from tasks.foundation.errors import FailureClass, StoreError
from tasks.publish import publish_to_all
from tasks.runs.served_targets import of_release
from tests.support.fakes.fake_runner import small_config
from tests.support.workspace.releases import write_release

TWO = "publish.targets=[{kind: lancedb, name: look, uri: l}, {kind: qdrant, name: shop, url: q}]"


def test_a_release_is_followed_at_each_target_also_when_another_took_its_place(store, runner):
    config = small_config(TWO)
    publish_to_all(store, config, write_release(store, 1), True)
    runner.fail(Chore.publish, StoreError("disk on fire"))
    with pytest.raises(StoreError):
        publish_to_all(store, config, write_release(store, 2), True)
    look, shop = of_release(store, 2, config.publish.targets)
    assert (look.failure, look.measured, look.now and look.now.release) == (FailureClass.STORE, None, 1)
    assert shop.now == shop.measured
    assert shop.now is not None
    assert (shop.now.release, shop.now.queries) == (2, 24)
    _, before = of_release(store, 1, config.publish.targets)
    assert before.measured is not None
    assert before.measured.table == "shop_r1_00000000"
    assert before.now == shop.now


def test_a_target_that_the_settings_do_not_name_counts_while_it_serves_the_release(store, runner):
    publish_to_all(store, small_config(TWO), write_release(store, 1), True)
    assert [each.target.name for each in of_release(store, 1, ())] == ["look", "shop"]
    assert of_release(store, 2, ()) == ()
