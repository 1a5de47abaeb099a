"""A parity comparison as artifacts of its flow run; the workspace has the report itself."""

from flows.presentation.markdown import image, section_lines
from flows.presentation.model import Cell, Section, Table, facts, table
from flows.presentation.wording import MINUS, NONE, count
from tasks.contracts.workspace import PARITY
from tasks.upkeep.equivalence import Equivalence, Finding, percent
from tasks.upkeep.parity_report import ParityPoint, ParityReport, worst_by_metric

MARKS = {
    Finding.equal: Cell("equal", "✓", "good"),
    Finding.different: Cell("different", "✕", "bad"),
    Finding.undecided: Cell("not decided"),
}
BOUNDS = (">each bound with 0.95", ">rows needed")  # columns of `bounds` and `needed`


def publish(report: ParityReport, workspace: str, plot: bytes) -> None:
    """Make a page and a table of all points, of the flow run in which this is called. `plot` is an SVG.

    Their keys name the sides alone, so that the history of a page shows how they agreed over the spans.
    """
    from prefect.artifacts import create_markdown_artifact, create_table_artifact  # the terminal needs no Prefect

    key = f"parity-{report.left.accelerator}-{report.right.accelerator}"
    about = f"span {report.span.name}, lineage {report.lineage}"
    create_markdown_artifact(key=key, markdown=markdown(report, workspace, plot), description=about)
    rows = [
        {"step": p.step, "metric": p.metric, "left": _value(p.left), "right": _value(p.right)}
        | {"relative difference": percent(p.relative_difference)}
        for p in report.points
    ]
    create_table_artifact(key=f"{key}-points", table=rows, description=f"{about}, every evaluation")


def markdown(report: ParityReport, workspace: str, plot: bytes) -> str:
    """Return the verdict, the plot, and the tables."""
    whole = section(report)
    head, rest = whole._replace(tables=()), whole._replace(title="Where they differ", lines=())
    plotted = image("Metrics of both sides over the steps", plot)
    return "\n".join([*section_lines(head, workspace), plotted, "", *section_lines(rest, workspace, 2)])


def section(report: ParityReport) -> Section:
    """Return the verdict, the largest difference of each metric, and the setup of both sides."""
    start = f"{report.parent.prefix}, step {report.parent.step}" if report.parent else "nothing"
    both = f"Both trained span {report.span.name} of lineage {report.lineage} from {start}."
    sides = [
        (name, side.accelerator, side.precision, str(side.workers), Cell(side.run_key, code=True))
        for name, side in (("left", report.left), ("right", report.right))
    ]
    stored = (("report", Cell("", key=PARITY.key(key=report.key))), ("plot", Cell("", key=report.plot)))
    return Section(
        report.state,
        (report.sentence, both),
        tables=(
            _qualities(report),
            _differences("Where each metric differs most", report, report.points),
            _differences("The training losses, which no gate judges", report, report.losses),
            table("", ("side", "accelerator", "precision", ">workers", "run"), sides),
            facts(stored, "Where the files are"),
        ),
    )


def _qualities(report: ParityReport) -> Table:
    rows = [
        (one.metric, *map(_value, (one.first, one.other)), MARKS[one.finding], bounds(one), needed(one))
        for one in report.qualities
    ]
    within = f"within {percent(report.margin)}"
    columns = ("metric", f">{report.left.accelerator}", f">{report.right.accelerator}", within, *BOUNDS)
    return table("After the last step", columns, rows)


def bounds(one: Equivalence) -> str:
    """Format the bounds of a relative difference."""
    if one.same_answers:
        return "the same answers"
    if one.relative_bounds is None:
        return NONE
    return " to ".join(f"{MINUS if bound < 0 else '+'}{percent(abs(bound))}" for bound in one.relative_bounds)


def needed(one: Equivalence) -> str:
    """Format the rows that would decide."""
    return NONE if one.rows_needed is None else count(one.rows_needed)


def _differences(caption: str, report: ParityReport, points: tuple[ParityPoint, ...]) -> Table:
    rows = [
        (p.metric, str(p.step), _value(p.left), _value(p.right), percent(p.relative_difference))
        for p in worst_by_metric(points)
    ]
    columns = ("metric", ">step", f">{report.left.accelerator}", f">{report.right.accelerator}", ">difference")
    return table(caption, columns, rows)


def _value(value: float) -> str:
    return f"{value:.8g}"
