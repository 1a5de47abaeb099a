"""The parity report as Prefect's UI shows it: artifacts of the flow run, with the plot inside.

The workspace has the report itself; these pages may be lost.
"""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.pages.markdown import code, image, table, text
from tasks.parity import ParityPoint, ParityReport, ParitySide, percent, worst_by_metric

_COLUMNS = ("metric", ">step", ">left", ">right", ">relative difference")


def publish(report: ParityReport, plot: bytes) -> None:
    """Make a page and a table of all points, of the flow run in which this is called. `plot` is an SVG.

    Their keys name the sides alone, so that the history of a page shows how they agreed over the spans.
    """
    key = f"parity-{report.left.accelerator}-{report.right.accelerator}"
    about = f"span {report.span.name}, lineage {report.lineage}"
    create_markdown_artifact(key=key, markdown=markdown(report, plot), description=about)
    rows = [
        {"step": p.step, "metric": p.metric, "left": _number(p.left), "right": _number(p.right)}
        | {"relative difference": percent(p.relative_difference)}
        for p in report.points
    ]
    create_table_artifact(key=f"{key}-points", table=rows, description=f"{about}, every evaluation")


def markdown(report: ParityReport, plot: bytes) -> str:
    """The verdict, the plot, for each metric the point where the sides differ most, and what the sides are."""
    start = f"{report.parent.prefix}, step {report.parent.step}" if report.parent else "nothing"
    return "\n".join(
        [
            f"# {'Agreed' if report.passed else 'Rejected'}",
            "",
            text(f"{report.sentence} Both trained span {report.span.name} of lineage {report.lineage} from {start}."),
            "",
            image("Metrics of both sides over the steps", plot),
            "",
            "Where each metric differs most:",
            "",
            *table(_COLUMNS, [_cells(point) for point in worst_by_metric(report.points)]),
            "And the training losses, which are not gated:",
            "",
            *table(_COLUMNS, [_cells(point) for point in worst_by_metric(report.losses)]),
            *table(
                ("side", "accelerator", "precision", ">workers", "run"),
                [_side("left", report.left), _side("right", report.right)],
            ),
            f"In the workspace: {code(f'{report.prefix}/report.json')}, {code(report.plot)}",
        ]
    )


def _cells(point: ParityPoint) -> tuple[str, ...]:
    difference = percent(point.relative_difference)
    return point.metric, str(point.step), _number(point.left), _number(point.right), difference


def _side(name: str, side: ParitySide) -> tuple[str, ...]:
    return name, side.accelerator, side.precision, str(side.workers), code(side.run_key)


def _number(value: float) -> str:
    return f"{value:.8g}"
