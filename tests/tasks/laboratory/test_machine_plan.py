"""The cost of a run: by earlier runs, by published figures, and unknown, never 0, without both."""

from __future__ import annotations

from pathlib import Path

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.contracts.costs import StageCost
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError
from tasks.laboratory.encoding_time import Known, Load
from tasks.laboratory.machine_plan import Asked, plan_costs, planned_cost, stage_cost
from tasks.monitoring.estimates import Past, run_cost
from tasks.planning.next_run import plan_run
from tasks.preflight.enough import enough
from tasks.runs.run import WHOLE, Run, against, error_of, record_plan
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out

ON_BATCH = ("compute=batch", "accelerator=xla", "batch.cpu_instance=m7i.2xlarge", "batch.processes_per_node=32",
            "batch.accelerator_instance=trn1.32xlarge", "train.workers=32", "infer.workers=32",
            "train.batch_rows=2048", "train.sequences=1536", "train.precision=bf16")  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, "2026-01", "2026-02")
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return store


def by_stage(stages: tuple[StageCost, ...]) -> dict[Stage, StageCost]:
    return {each.stage: each for each in stages}


def test_nothing_is_known_of_a_first_run_on_this_machine(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config())
    cost = planned_cost(store, plan, enough(store, plan))
    assert (cost.seconds, cost.dollars, cost.training) == (None, None, None)
    assert any("train" in sentence for sentence in cost.unknown)


def test_a_first_run_on_aws_is_planned_by_published_figures(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config(*ON_BATCH))
    cost = planned_cost(store, plan, enough(store, plan))
    found = by_stage(cost.stages)
    boots = {each.stage: each.phases.booting for each in cost.stages if each.phases is not None}
    assert boots == {stage: 300 if stage in (Stage.validate, Stage.health, Stage.release) else 60 for stage in Stage}
    compiling = found[Stage.warmup].phases
    assert compiling is not None
    assert compiling.compiling == 780
    assert {each.basis for each in cost.stages} == {"assumed"}, "a tiny encoder is far from every published row"
    assert cost.dollars == pytest.approx(sum(each.dollars or 0 for each in cost.stages))
    assert cost.training is not None
    assert cost.training.exchange is not None
    assert cost.memory is not None
    assert cost.memory.device_gib == 16.0


def test_a_first_run_of_queries_alone_embeds_no_item_on_machines_that_nobody_used() -> None:
    load = Load(items=10_000_000, steps=100, tokens=1e9)
    both, queries = (small_config(*ON_BATCH, *more) for more in ((), ("train.sides=queries",)))
    costs = [stage_cost(Known(Past((), {})), config, Stage.infer, load) for config in (both, queries)]
    seconds = [cost.phases.productive for cost in costs if cost.phases is not None]
    assert seconds[0] > 1
    assert seconds[1] == 0.0


def test_a_machine_without_a_price_is_named_and_its_cost_unknown(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config(*ON_BATCH))
    cost = planned_cost(store, plan, enough(store, plan), Asked("trn2.48xlarge"))
    assert cost.seconds is not None
    assert cost.dollars is None
    assert any("trn2.48xlarge has no price" in sentence for sentence in cost.unknown)


def test_more_nodes_are_no_faster_than_their_communication(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config(*ON_BATCH))
    found = plan_costs(store, plan, nodes=(1, 4))
    one, four = (each.cost for each in found.choices)
    assert one.training is not None
    assert four.training is not None
    assert four.training.share is not None
    assert four.training.share <= 1
    assert "a larger train.batch_rows" in four.training.warning
    assert found.cheapest == found.fewest_in_time == 1
    assert one.dollars is not None
    assert four.dollars is not None
    assert four.dollars > one.dollars


def test_nodes_of_this_machine_and_unknown_instances_are_refused(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config())
    with pytest.raises(ConfigError, match="--instance"):
        plan_costs(store, plan, nodes=(2,))
    with pytest.raises(ConfigError, match=r"m1\.small"):
        plan_costs(store, plan, instance="m1.small")


def test_a_measured_peak_replaces_the_estimate_for_the_same_settings_alone(store: DirectoryStore) -> None:
    config = small_config()
    first = plan_run(store, config, "2026-01")
    before = planned_cost(store, first, enough(store, first)).memory
    carry_out(first)
    second, other = plan_run(store, config), plan_run(store, small_config("train.batch_rows=32"))
    after, changed = (planned_cost(store, plan, enough(store, plan)).memory for plan in (second, other))
    assert before is not None
    assert after is not None
    assert changed is not None
    assert (before.measured_gib, changed.measured_gib) == (None, None)
    assert after.needed_gib == after.measured_gib


def test_a_run_is_compared_with_its_first_plan(store: DirectoryStore) -> None:
    config = small_config("cost.dollars_per_worker_hour=36")
    carry_out(plan_run(store, config, "2026-01"))
    plan = plan_run(store, config)
    record_plan(store, plan.run_key, run_cost(store, plan))
    carry_out(plan)
    record_plan(store, plan.run_key, run_cost(store, plan))  # a second invocation: everything is done
    *stages, whole = against(Run(Snapshot(store), plan.run_key))
    assert [each.name for each in stages] == [stage.value for stage in Stage]
    assert whole.name == WHOLE
    assert whole.error == pytest.approx(0.0)
    assert whole.planned_dollars == pytest.approx(whole.actual_dollars)
    assert error_of([Run(Snapshot(store), plan.run_key)]) == pytest.approx(0.0)


def test_a_stage_on_other_machines_or_more_of_them_boots_its_own(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config(*ON_BATCH, "infer.workers=64"))
    found = by_stage(planned_cost(store, plan, enough(store, plan)).stages)
    phases = found[Stage.infer].phases
    assert phases is not None
    assert phases.booting == 300, "one of its two machines is new"


def test_infer_alone_has_a_price_on_spot_with_a_boot_of_its_own(store: DirectoryStore) -> None:
    """By the quote of prices.yaml; a team's own list goes before it, and without a quote there is none."""
    plan = plan_run(store, small_config(*ON_BATCH))
    cost = planned_cost(store, plan, enough(store, plan))
    infer = by_stage(cost.stages)[Stage.infer]
    assert cost.spot is not None
    assert infer.phases is not None
    assert (cost.spot.price.basis, cost.spot.price.dollars_per_hour) == ("spot", 2.4334)
    assert cost.spot.seconds == pytest.approx(infer.phases.total - 60 + 300), "the machine of evaluate is on demand"
    assert cost.spot.dollars == pytest.approx(cost.spot.seconds / 3600 * 2.4334)
    assert cost.spot.instead_of == infer.dollars
    own = "cost.prices=[{basis: spot, region: us-east-1, date: 2026-01-01, source: ours, "
    own += "dollars_per_hour: {trn1.32xlarge: 5.0}}]"
    plan = plan_run(store, small_config(*ON_BATCH, own))
    dearer = planned_cost(store, plan, enough(store, plan)).spot
    assert dearer is not None
    assert dearer.price.source == "ours"
    assert planned_cost(store, plan, enough(store, plan), Asked("inf2.xlarge")).spot is None
