"""The short form of a run's report for a terminal: its end, its gates, a line for each stage, and what to do."""

import shlex
from collections.abc import Iterator

from flows.presentation.model import Cell, Command, Page, Section, state, table
from flows.presentation.stages.evaluate import answered
from flows.presentation.wording import NONE, duration, gate_name, number
from tasks.contracts.stages import Stage
from tasks.runs.run import Run

DONE, OPEN = Cell("done", "✓", "good"), Cell("not reached", "○", "quiet")


def shortened_page(run: Run, page: Page, with_costs: bool = False) -> Page:
    """Return the top of a run's page, its gates, its stages and, on request, its cost; `page` is the whole one."""
    title = {section.id: section.title.partition(": ")[2] for section in page.sections}
    failures = tuple(_without_good_news(each) for each in page.sections if each.id == "failures")
    costs = tuple(each._replace(tables=each.tables[:1]) for each in page.sections if with_costs and each.id == "cost")
    return page._replace(sections=(*failures, *_gates(run), _stages(run, title), *costs, _more(run, page)))


def _without_good_news(section: Section) -> Section:
    """Return a section without the checks that passed."""
    tables = (
        each._replace(rows=tuple(row for row in each.rows if not any(cell.mood == "good" for cell in row)))
        for each in section.tables
    )
    left = tuple(each for each in tables if each.rows)
    return section._replace(tables=left, parts=tuple(map(_without_good_news, section.parts)))


def _gates(run: Run) -> Iterator[Section]:
    """Yield a line for each gate, and the sentences of warnings; a box above has the sentences of refusals."""
    verdicts = run.judgement.all_verdicts if run.judgement else ()
    if not verdicts:
        return
    rows = [
        (gate_name(v), answered(v), number(v.value), number(v.baseline), number(v.threshold) if v.threshold else NONE)
        for v in verdicts
    ]
    lines = tuple(v.sentence for v in verdicts if v.answer in ("fail", "undecided") and not v.refuses)
    yield Section("Gates", lines, tables=(table("", ("~gate", "verdict", ">value", ">baseline", ">limit"), rows),))


def _stages(run: Run, titles: dict[str, str]) -> Section:
    rows = []
    for stage in Stage:
        work = run.stage(stage)
        failed = bool(work.attempts) and work.attempts[-1].failure is not None and not work.done
        ended = DONE if work.done else state("Failed") if failed else OPEN
        took = duration(work.wall_seconds) if work.attempts else NONE
        rows.append((stage.value, ended, str(len(work.attempts)), took, titles.get(stage.value, "")))
    return Section("Stages", tables=(table("", ("stage", "", ">attempts", ">time", "~result"), rows),))


def _more(run: Run, page: Page) -> Section:
    here = f"--run {run.run_key} --workspace {shlex.quote(page.workspace)}"
    commands = [
        Command("All of it here, or as a page with figures:", (f"millrace report --full {here}",
                                                               f"millrace report --html report.html {here}")),
        Command("The page in a browser, with its data and its rows set apart:",
                (f"millrace serve --workspace {shlex.quote(page.workspace)}",)),
    ]  # fmt: skip
    return Section("More", commands=tuple(commands))
