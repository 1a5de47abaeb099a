"""A bake-off as a page: the winner, the table, the quality of each side, and curves over steps, seconds and dollars."""

from __future__ import annotations

from collections.abc import Iterator

from flows.laboratory.parity_page import BOUNDS, MARKS, bounds, needed
from flows.presentation import html
from flows.presentation.figures import cost_figures
from flows.presentation.markdown import section_lines
from flows.presentation.model import Figure, Page, Section, Table, table
from flows.presentation.wording import NONE, count, dollars, duration, number
from tasks.laboratory.bakeoff_report import BakeoffReport
from tasks.laboratory.equivalence import percent


def publish(report: BakeoffReport, workspace: str) -> None:
    """Make a page of the flow run in which this is called; the figures are on the page in the workspace."""
    from prefect.artifacts import create_markdown_artifact  # the terminal needs no Prefect

    lines = [line for section in sections(report) for line in section_lines(section, workspace)]
    about = f"span {report.span.name}, lineage {report.lineage}: {', '.join(side.name for side in report.sides)}"
    create_markdown_artifact(key="bakeoff", markdown="\n".join(lines), description=about)


def render_page(report: BakeoffReport, workspace: str) -> bytes:
    """Return the page as one HTML file."""
    return html.render(bakeoff_page(report, workspace))


def bakeoff_page(report: BakeoffReport, workspace: str) -> Page:
    """Return the page; its first sentence is the result."""
    won, *_ = report.sentences
    return Page(
        title=f"Bake-off over {report.span.name}",
        workspace=workspace,
        key=report.page,
        heading=f"Bake-off over {report.span.name}: {', '.join(side.name for side in report.sides)}",
        summary=won,
        about=(
            f"All sides trained span {report.span.name} of lineage {report.lineage} from {report.start}, steps "
            f"{report.first_step:,} to {report.last_step:,}, with seeds {', '.join(map(str, report.seeds))}.",
            f"The target is {report.goal}: {report.target_is}.",
        ),
        state=None,
        tiles=(),
        boxes=(),
        sections=sections(report),
    )


def sections(report: BakeoffReport) -> tuple[Section, ...]:
    """Return the tables with the notes to read them by, and the curves."""
    return (
        Section("Speed and quality", report.sentences[1:], id="quality", tables=tuple(_quality(report))),
        Section("Time and dollars", tuple(_notes(report)), id="dollars", tables=(_dollars(report), _prices(report))),
        *_published(report),
        Section("Curves", id="curves", figures=_figures(report), tables=(_points(report),)),
    )


def _quality(report: BakeoffReport) -> Iterator[Table]:
    several = len(report.seeds) > 1
    rows = [
        (
            side.name,
            side.instance or NONE,
            str(side.machines),
            side.precision,
            _rate(side.iterations_per_second),
            _rate(side.pairs_per_second),
            number(side.value),
            *([f"{number(side.low)} to {number(side.high)}"] if several else []),
        )
        for side in report.sides
    ]
    columns = ("side", "instance", ">nodes", "precision", ">it/s", ">pairs/s", f">{report.metric}")
    yield table(f"At step {report.last_step}", (*columns, *([">95 % interval"] if several else [])), rows)
    compared = [
        (
            pair.side,
            f"{pair.quality.difference:+.4f}",
            percent(pair.quality.relative_difference),
            MARKS[pair.quality.finding],
            bounds(pair.quality),
            needed(pair.quality),
            NONE if pair.largest is None else percent(pair.largest.relative_difference),
        )
        for pair in report.pairs
    ]
    if compared:
        within = f"within {percent(report.margin)}"
        columns = ("side", ">difference", ">relative", within, *BOUNDS, ">largest at any step")
        yield table(f"Against {report.pairs[0].first}", columns, compared)


def _dollars(report: BakeoffReport) -> Table:
    rows = [
        (
            side.name,
            f"{side.billable_seconds:,.1f}",
            dollars(side.dollars),
            NONE if side.target_seconds is None else f"{side.target_seconds:,.1f}",
            dollars(side.target_dollars),
            dollars(side.dollars_without_start),
        )
        for side in report.sides
    ]
    columns = ("side", ">billable s", ">$", ">s to target", ">$ to target", ">$ without start")
    return table(f"To step {report.last_step}, and to {report.goal}", columns, rows)


def _prices(report: BakeoffReport) -> Table:
    rows = [
        (side.name, *((side.price.says, side.price.source) if side.price else ("not known", side.unpriced)))
        for side in report.sides
    ]
    return table("Prices", ("side", "~price of one node", "~source"), rows)


def _published(report: BakeoffReport) -> Iterator[Section]:
    """Yield the trainings of others, if they were asked for."""
    if not report.published:
        return
    rows = [
        (
            one.training.name,
            one.training.instance,
            str(one.training.nodes),
            count(one.billable_seconds),
            dollars(one.dollars),
            one.price.says if one.price is not None else "not known",
            f"{one.training.date}, {one.training.source}",
        )
        for one in report.published
    ]
    columns = ("training", "instance", ">nodes", ">billable s", ">$", "~price of one node", "~published")
    about = "Others published these seconds, of other models and data. Their prices are looked up as those above."
    yield Section("Published by others", (about,), id="published", tables=(table("", columns, rows),))


def _notes(report: BakeoffReport) -> Iterator[str]:
    yield (
        "Billable: seconds in which machines were held for health, warmup and one training, added up over the "
        "machines; validate, which the sides share, is not in them. Without start: without booting and compiling."
    )
    for side in report.sides:
        if side.lost_seconds:
            yield f"{side.name} lost {duration(side.lost_seconds)} to failed or killed attempts, which do not count."


def _figures(report: BakeoffReport) -> tuple[Figure, ...]:
    lines = {side.name: side.points for side in report.sides}
    about = f"mean of {len(report.seeds)} seeds; grey line: the target" if len(report.seeds) > 1 else "grey: the target"
    return cost_figures(report.metric, lines, report.target, about)


def _points(report: BakeoffReport) -> Table:
    rows = [
        (side.name, count(point.step), f"{point.seconds:,.1f}", dollars(point.dollars), number(point.value))
        for side in report.sides
        for point in side.points
    ]
    return table("Every evaluation", ("side", ">step", ">seconds", ">$", f">{report.metric}"), rows, folded=True)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
