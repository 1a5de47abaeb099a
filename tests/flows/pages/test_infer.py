import pytest

from flows.pages.infer import page
from tasks.contracts import Stage
from tasks.errors import HostError
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import table_of, told
from tests.support.stages import carry_out


def test_vectors_have_their_speed_and_their_price_with_what_failed(store, runner):
    plan = plan_run(store, small_config("cost.dollars_per_worker_hour=3600"))
    runner.fail(Stage.infer, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    inferred = carry_out(plan).inferred
    assert inferred is not None
    text = page(store, plan, inferred.model_copy(update={"shards": 4, "shards_reused": 3}))
    assert text.startswith("# 30 vectors\n\nIn 4 shards, of which an earlier attempt had made 3.")
    values = told(text, "value")
    assert values["texts per second"] == "100.0"
    assert values["of them reused"] == "3"
    assert values["dollars per million vectors"] == "$650000.00"  # two attempts of 9.75 s for 30 vectors
    assert ["vectors", f"{store.uri}/{inferred.prefix}"] in table_of(text, "where")


def test_nothing_was_reused(store, runner):
    plan = plan_run(store, small_config())
    inferred = carry_out(plan).inferred
    assert inferred is not None
    assert "In 1 shard, of which an earlier attempt had made none." in page(store, plan, inferred)
