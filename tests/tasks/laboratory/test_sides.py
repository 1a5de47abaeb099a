"""Sides of a comparison: planned and run."""

from typing import NamedTuple

import pytest

from flows.laboratory.train_sides import drop_checkpoints
from infra.compute.batch.job import definition_of, queue_of
from infra.store.directory import DirectoryStore
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError
from tasks.laboratory.parity_report import with_one_precision
from tasks.laboratory.sides import plan_sides, read_side
from tasks.planning.next_run import plan_run
from tasks.runs import lineage
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.fakes.stages import carry_out

pytestmark = pytest.mark.usefixtures("runner")


class Planned(NamedTuple):
    common: RunPlan
    left: RunPlan
    right: RunPlan
    lineage: str
    lock: str


def sides(store: DirectoryStore, span: str, *overrides: str, left: str = "cpu", right: str = "xla") -> Planned:
    runs = plan_sides(store, with_one_precision(small_config(*overrides)), span, (left, right))
    first, second = (run.plan for run in runs.runs)
    return Planned(runs.common, first, second, runs.lineage, runs.lock)


def trained(store: DirectoryStore, *spans: str) -> list[RunPlan]:
    plans = []
    for span in spans:
        plans.append(plan_run(store, small_config(), span))
        carry_out(plans[-1])
    return plans


def test_the_sides_differ_only_in_accelerator_and_lineage(store):
    trained(store, "2021-Q1")
    common, left, right = (planned := sides(store, "2021-Q2")).common, planned.left, planned.right
    own = {"run_key", "config"}
    assert left.model_dump(exclude=own) == right.model_dump(exclude=own) == common.model_dump(exclude=own)
    assert (left.config.accelerator, right.config.accelerator) == ("cpu", "xla")
    as_right = left.config.model_copy(update={"accelerator": "xla", "lineage": right.config.lineage})
    assert as_right == right.config
    assert len({plan.run_key for plan in (common, left, right)}) == 3
    assert len({"main", *(plan.config.lineage for plan in (common, left, right))}) == 4
    assert planned.lineage == "main"


GPUS = "{queue: g, definition: 'g-{stage}', processes_per_node: 8, instance: p4d.24xlarge}"


def test_the_side_on_cuda_has_a_machine_with_gpus_of_its_own(store):
    """On Batch the other accelerators' machines have none."""
    settings = ("train.compute=batch", f"batch.cuda={GPUS}", "train.batch_rows=32", "batch.processes_per_node=16")
    left, right = sides(store, "2021-Q1", *settings, right="cuda")[1:3]
    for stage, queue, definition in (("train", "g", "g-train"), ("validate", "millrace-cpu", "millrace-validate")):
        batch = right.config.batch
        assert (queue_of(Stage(stage), batch), definition_of(Stage(stage), batch)) == (queue, definition)
    assert (right.config.train.workers, right.config.batch.processes_per_node) == (8, 8)
    assert right.config.batch.accelerator_instance == "p4d.24xlarge"
    assert left.config.batch.processes_per_node == 16
    with pytest.raises(ConfigError, match=r"batch_rows 30 .*per_node 8"):
        sides(store, "2021-Q1", *settings, "train.batch_rows=30", right="cuda")


@pytest.mark.parametrize("span", ["2021-Q1", "2021-Q2", "2021-Q3"])
def test_both_sides_have_the_inputs_of_the_lineages_own_run(store, span: str):
    plans = {plan.span.name: plan for plan in trained(store, "2021-Q1", "2021-Q2")}
    own = plans.get(span) or plan_run(store, small_config(), span)
    for plan in sides(store, span)[1:3]:
        assert (plan.window, plan.history, plan.parent) == (own.window, own.history, own.parent)


def test_a_span_trained_with_other_settings_can_be_compared(store):
    (first,) = trained(store, "2021-Q1")
    planned = sides(store, "2021-Q1", "train.epochs=3")
    assert (planned.left.window, planned.left.parent) == (first.window, None)
    assert planned.left.config.train.epochs == 3


def test_a_trained_span_keeps_its_version_when_a_correction_arrives(store):
    trained(store, "2021-Q1")
    ingest(store, "2021-Q1", version=2)
    assert sides(store, "2021-Q1").left.span == SpanRef(name="2021-Q1", version=1)


@pytest.mark.parametrize(("setting", "given"), [("auto", "fp32"), ("bf16", "bf16"), ("fp32", "fp32")])
def test_auto_is_fp32_on_both_sides(store, setting: str, given: str):
    for plan in sides(store, "2021-Q1", f"train.precision={setting}")[1:3]:
        assert plan.config.train.precision == given


def test_a_side_does_not_depend_on_the_other_side(store):
    xla = sides(store, "2021-Q1")
    cuda = sides(store, "2021-Q1", left="cuda", right="cpu")
    assert cuda.right == xla.left
    assert cuda.common == xla.common
    assert cuda.lock == xla.lock


def test_other_settings_have_other_lineages(store):
    one, other = sides(store, "2021-Q1"), sides(store, "2021-Q1", "train.learning_rate=0.1")
    assert {plan.config.lineage for plan in one[1:3]} & {plan.config.lineage for plan in other[1:3]} == set()
    assert one.lock != other.lock


def test_an_accelerator_compared_with_itself_has_two_runs(store):
    planned = sides(store, "2021-Q1", right="cpu")
    assert planned.left.run_key != planned.right.run_key
    assert planned.left.config.lineage != planned.right.config.lineage
    assert planned.left.config.accelerator == planned.right.config.accelerator == "cpu"


@pytest.mark.parametrize(
    ("span", "left", "message"),
    [
        ("2021-Q1", "tpu", "unknown accelerator 'tpu'; known are cpu, cuda, neuron, xla"),
        ("2021-Q9", "cpu", "span '2021-Q9' is not a day"),
        ("2031-Q1", "cpu", "span '2031-Q1' was not ingested"),
        ("2021-Q3", "cpu", "run 2021-Q2 first"),
    ],
)
def test_an_impossible_comparison_is_refused_and_writes_nothing(store, span: str, left: str, message: str):
    trained(store, "2021-Q1")
    before = store.list("")
    with pytest.raises(ConfigError, match=message):
        sides(store, span, left=left)
    assert store.list("") == before


def test_spans_trained_together_name_the_way_out(store):
    trained(store, "2021-Q2")
    with pytest.raises(ConfigError, match=r"later .*a later span"):
        sides(store, "2021-Q1")
    assert [span.name for span in sides(store, "2021-Q2").left.window] == ["2021-Q1", "2021-Q2"]


def test_dropping_a_sides_checkpoints_touches_no_other_lineage(store):
    trained(store, "2021-Q1")
    left, right = sides(store, "2021-Q1", right="cpu")[1:3]
    for plan in (left, right):
        carry_out(plan)
    drop_checkpoints(store, left)
    assert lineage.head(store, left.config.lineage) is None
    assert lineage.head(store, right.config.lineage) is not None
    assert lineage.head(store, "main") is not None


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("xla", "xla", ("accelerator=xla",)),
        ("cpu bf16:train.precision=bf16", "cpu bf16", ("accelerator=cpu", "train.precision=bf16")),
        ("fast:accelerator=xla, compiler.optlevel=2", "fast", ("accelerator=xla", "compiler.optlevel=2")),
        ("g:batch.cuda={queue: a, definition: b},compute=batch", "g",
         ("batch.cuda={queue: a, definition: b}", "compute=batch")),
    ],
)  # fmt: skip
def test_a_side_is_a_name_and_settings(text: str, name: str, settings: tuple[str, ...]):
    assert read_side(text) == (name, settings)


@pytest.mark.parametrize(
    "text",
    ["", "tpu", "cpu:", "a:train.precision", "a:train.learning_rate=1", "a:seed=2", "a:lineage=main", "b:batch=1"],
)
def test_a_side_that_would_train_something_else_is_refused(text: str):
    with pytest.raises(ConfigError):
        read_side(text)


def test_every_seed_has_a_lineage_of_its_own_and_the_first_ones_come_first(store):
    runs = plan_sides(store, small_config(), "2021-Q1", ("cpu", "b:compiler.optlevel=2"), seeds=2)
    assert [(run.side, run.seed) for run in runs.runs] == [("cpu", 17), ("b", 17), ("cpu", 18), ("b", 18)]
    assert [run.plan.config.seed for run in runs.runs] == [17, 17, 18, 18]
    assert len({run.plan.config.lineage for run in runs.runs}) == len({run.plan.run_key for run in runs.runs}) == 4
    fewer = plan_sides(store, small_config(), "2021-Q1", ("b:compiler.optlevel=2",))
    assert fewer.runs[0].plan == runs.runs[1].plan


def test_machines_tell_sides_apart_and_prices_do_not(store):
    """Machines decide no model, so they are not in a run's key; a price decides no training."""
    one, other, dear = (
        plan_sides(store, small_config(), "2021-Q1", (side,)).runs[0].plan
        for side in ("cpu", "cpu b:batch.accelerator_queue=b", "cpu c:cost.dollars_per_worker_hour=9")
    )
    assert one.run_key != other.run_key
    assert one.run_key == dear.run_key
