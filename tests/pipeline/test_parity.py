"""Two real trainings of the same span: PyTorch as it is, and the same through XLA's compiler, agree step for step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import infra.compute.factory
from configs.load import load_config
from flows.laboratory.train_sides import train as train_side
from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.stages import Stage
from tasks.laboratory.parity_report import ParityReport, compare, with_one_precision
from tasks.laboratory.sides import Trained, plan_sides
from tasks.planning.next_run import plan_run
from tasks.runs import lineage
from tasks.runs.plan import save_plan
from tasks.train import train
from tasks.validate import validate
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import SPANS, Shop, open_shop

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

SETTINGS = (
    "train.batch_rows=32",
    "train.evaluate_every_steps=2",
    "train.log_every_steps=1",
    "evaluate.holdout_share=0.3",
)
COMPILES_NOTHING = WarmupOutcome.model_construct(compiled=None)  # all that train looks at


class Compared(NamedTuple):
    shop: Shop
    output: dict[str, Any]


class PlantedRunner(LocalRunner):
    """Trains the second of two equal sides with another learning rate than was asked for."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        if spec.stage is Stage.train and spec.config.lineage.endswith("-again"):
            faster = spec.config.train.model_copy(update={"learning_rate": 5 * spec.config.train.learning_rate})
            spec = spec.model_copy(update={"config": spec.config.model_copy(update={"train": faster})})
            self.store.write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
        super().run(spec, waiter, tries)


@pytest.fixture(scope="module")
def compared(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """The first month is in the lineage; the second is compared by the command. Tests leave this workspace as it is."""
    shop = open_shop(tmp_path_factory.mktemp("shop"), prefect.home, rows_per_span=400)
    begin_lineage(shop)
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    compare = ("parity", "--span", SPANS[1], "--config", str(shop.config_file))
    return Compared(shop, shop.millrace(*compare, *settings, "--json").json)


def begin_lineage(shop: Shop) -> None:
    """Train the first month without the stages around it."""
    store = DirectoryStore(shop.workspace)
    plan = plan_run(store, load_config(shop.config_file, SETTINGS), SPANS[0])
    save_plan(store, plan)
    train.fn(plan, validate.fn(plan), COMPILES_NOTHING)


def test_cpu_and_xla_agree_at_every_evaluation(compared: Compared) -> None:
    output = compared.output
    report = ParityReport.model_validate(output["report"])
    assert output["state"] == "Agreed", output["sentence"]
    assert (report.left.accelerator, report.right.accelerator) == ("cpu", "xla")
    assert report.left.precision == report.right.precision == "fp32"
    steps = sorted({point.step for point in report.points})
    assert report.parent is not None
    assert steps[0] == report.parent.step
    assert len(steps) >= 5
    assert {"recall@10", "mrr@10", "auc"} <= {point.metric for point in report.points}
    assert all(point.relative_difference < 0.001 for point in report.points)
    losses = [point for point in report.losses if point.metric == "loss"]
    assert [point.step for point in losses] == list(range(steps[0] + 1, steps[-1] + 1))
    assert losses[-1].left < losses[0].left
    assert all(point.relative_difference < 1e-4 for point in losses)


def test_the_two_sides_were_computed_by_different_machines(compared: Compared) -> None:
    """Else the agreement would mean nothing: rounding differs somewhere."""
    report = ParityReport.model_validate(compared.output["report"])
    assert any(point.relative_difference > 0 for point in report.losses)
    assert report.left.device != report.right.device


def test_a_comparison_leaves_only_its_report(compared: Compared) -> None:
    workspace, report = compared.shop.workspace, compared.output["report"]
    assert [path.name for path in (workspace / "lineages").iterdir()] == ["main"]
    head = lineage.head(DirectoryStore(workspace), "main")
    assert head is not None
    assert head[0].model_dump() == report["parent"]
    assert sorted(path.name for path in (workspace / "parity" / report["key"]).iterdir()) == [
        "curves.svg",
        "report.json",
    ]
    assert Path(compared.output["plot"]).read_bytes().startswith(b"<?xml")


def test_a_planted_difference_is_refused(compared: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(compared.shop.workspace)
    config = with_one_precision(load_config(compared.shop.config_file, SETTINGS))
    sides = plan_sides(store, config, SPANS[1], ("cpu", "cpu"))
    validated = validate.fn(sides.common)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: PlantedRunner(store))
    left, right = (Trained(run, "cpu", train_side.fn(run.plan, validated, COMPILES_NOTHING)) for run in sides.runs)
    assert left.plan.run_key == compared.output["report"]["left"]["run_key"]
    assert left.outcome.curve[0] == right.outcome.curve[0]
    report = compare(store, "main", left, right)
    assert report.state != "Agreed"
    assert report.largest.relative_difference > 0.001
