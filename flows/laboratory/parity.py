"""The parity comparison, top to bottom: train one span twice from one checkpoint, on two accelerators.

Call it like a function (a Prefect server must answer, see infra/prefect_server.py), or deploy it.
"""

from typing import Any

from prefect import flow
from prefect.states import Completed

from configs.load import load_config
from configs.schema.compute import AcceleratorName
from flows.laboratory.parity_page import draw, publish
from flows.laboratory.train_sides import train_sides
from flows.orchestration.cancelling import cancellable, end_jobs
from flows.orchestration.parameters import ConfigFile, Overrides, SpanName, Workspace
from flows.orchestration.run_end import show_rejection
from infra.store.factory import open_store
from tasks.laboratory.parity_report import ParityReport, compare, save_report, with_one_precision
from tasks.laboratory.sides import plan_sides
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage_output import logger


@flow(
    name="parity",
    flow_run_name="{span}: {left} and {right}",
    on_cancellation=[end_jobs],
    on_completion=[show_rejection],
)
@cancellable
def parity(
    workspace: Workspace,
    span: SpanName,
    left: AcceleratorName = "cpu",
    right: AcceleratorName = "xla",
    config_file: ConfigFile = "",
    overrides: Overrides = (),
) -> ParityReport:
    """Train on a span from the lineage's checkpoint on two accelerators, and compare the holdout metrics.

    The lineage itself stays as it is, trained on the span or not. Both sides share the validated rows and so the order
    of the data; `train.precision: auto` means fp32. A finished side is not trained again; the sides' checkpoints are
    deleted at once, since the comparison only needs their metrics and answers. A disagreement is a result, not an
    error: the state is Rejected, or Undecided if the rows can't tell, with the report as its data.

    Args:
        workspace: storage of spans and runs; a local directory or s3://bucket/prefix.
        span: for example 2022-Q4.
        left: the reference accelerator.
        right: the other accelerator.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in train.evaluate_every_steps=10.

    Raises:
        Conflict: another process runs the same comparison.
        StageError: a stage or the planning failed, with its failure class.
    """
    config = with_one_precision(load_config(config_file, overrides))
    store = open_store(workspace)
    runs = plan_sides(store, config, span, (left, right))
    with hold_lineage(store, runs.lock, logger().warning):
        report = compare(store, runs.lineage, *train_sides(runs))
        plot = draw(report)
        save_report(store, report, plot)
        publish(report, workspace, plot)
    if report.state == "Agreed":
        return report
    ended: Any = Completed(name=report.state, message=report.sentence, data=report)  # the caller gets the data
    return ended
