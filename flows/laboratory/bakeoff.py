"""The bake-off, top to bottom: train one span on each side, and compare speed, quality and dollars.

Call it like a function (a Prefect server must answer, see infra/prefect_server.py), or deploy it.
"""

from prefect import flow

from configs.load import load_config
from flows.laboratory.bakeoff_page import publish, render_page
from flows.laboratory.train_sides import train_sides
from flows.orchestration.cancelling import cancellable, end_jobs
from flows.orchestration.parameters import ConfigFile, Overrides, Seeds, Sides, SpanName, Workspace
from infra.store.factory import open_store
from tasks.laboratory.bakeoff_report import BakeoffReport, published_lines
from tasks.laboratory.bakeoff_sides import report_bakeoff, save_report
from tasks.laboratory.sides import plan_sides
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage_output import logger


@flow(name="bakeoff", flow_run_name="bake-off over {span}", on_cancellation=[end_jobs])
@cancellable
def bakeoff(
    workspace: Workspace,
    span: SpanName,
    sides: Sides = ("cpu", "xla"),
    seeds: Seeds = 1,
    published: bool = False,
    config_file: ConfigFile = "",
    overrides: Overrides = (),
) -> BakeoffReport:
    """Train a span from the lineage's checkpoint on each side, with each seed, and compare.

    The lineage itself stays as it is, trained on the span or not. All sides share the validated rows and, with one
    seed, the batches. A finished training is not repeated, so a bake-off that was killed goes on; its prices are looked
    up anew.

    Args:
        workspace: storage of spans and runs; a local directory or s3://bucket/prefix.
        span: for example 2022-Q4.
        sides: NAME[:key=value,...] each, as in cpu, or in bf16:accelerator=cpu,train.precision=bf16.
        seeds: trainings of each side; the first has the configuration's seed, the next ones count up.
        published: true: also show figures that AWS and MLPerf published, at the same prices.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in train.evaluate_every_steps=10.

    Raises:
        Conflict: another process runs a comparison of the same work.
        StageError: a stage or the planning failed, with its failure class.
    """
    store = open_store(workspace)
    config = load_config(config_file, overrides)
    runs = plan_sides(store, config, span, sides, seeds)
    others = published_lines(config.cost) if published else ()
    with hold_lineage(store, runs.lock, logger().warning):
        report = report_bakeoff(store, runs, train_sides(runs), others)
        save_report(store, report, render_page(report, workspace))
        publish(report, workspace)
    return report
