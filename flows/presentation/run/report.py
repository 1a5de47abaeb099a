"""The report of one run, made from the workspace alone, also of a run that failed or is not over.

Its short form is for a terminal: its end, its gates, a line for each stage, and what to do.
"""

import datetime as dt
import shlex
from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from configs.prices import basis_of
from configs.schema.operations import PriceList
from flows.presentation import html, publications
from flows.presentation.changes import changes_section
from flows.presentation.costs import budget_boxes, cost_section
from flows.presentation.model import (
    HISTORY_KEY,
    Cell,
    Command,
    Page,
    Section,
    Tile,
    ended_as,
    facts,
    files,
    state,
    table,
    unreadable,
)
from flows.presentation.run import account, origin, planned
from flows.presentation.run.data_page import ROWS_PAGE, data_html, judged_rows
from flows.presentation.stages import failure
from flows.presentation.stages.evaluate import answered, asked, by_human
from flows.presentation.stages.facts import StageFacts, section_of
from flows.presentation.stages.failure import data_message, read_data_failure
from flows.presentation.wording import (
    NONE,
    count,
    dollars,
    duration,
    gate_name,
    moment,
    number,
    sentence,
    share,
    with_settings,
)
from infra.store.base import Store
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.references import CheckpointState
from tasks.contracts.runs import RunState
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import DATA_PAGE, REPORT
from tasks.foundation.errors import RUNBOOK, FailureClass, StoreError
from tasks.foundation.nouns import plural
from tasks.monitoring.spending import Costs, budget_of_run, costs_of
from tasks.planning.start import next_start
from tasks.runs import branches
from tasks.runs.lineage import STATE
from tasks.runs.results import read_changes
from tasks.runs.run import Run, read_run
from tasks.runs.served_targets import of_release
from tasks.runs.snapshot import Snapshot


def write_run_report(store: Store, run_key: str) -> str | None:
    """Make the report of a run and store it with the run's records; return its key, or None if that failed.

    Never raises: an error is logged, so that it can't change the outcome of the run.
    """
    from tasks.running.stage_output import logger  # loads Prefect, which a report does not need

    try:
        store.write(REPORT.key(run=run_key), run_html(store, run_key))
        if not store.exists(DATA_PAGE.key(run=run_key)) and (data := data_html(store, run_key)) is not None:
            store.write(DATA_PAGE.key(run=run_key), data)
    except Exception as error:
        logger().warning("the report of run %s could not be made: %s: %s", run_key, type(error).__name__, error)
        return None
    return REPORT.key(run=run_key)


def run_html(store: Store, run_key: str, prices: Sequence[PriceList] = ()) -> bytes:
    """Return the report of one run as HTML. Takes and raises the same as `run_page`."""
    return html.render(run_page(store, run_key, prices))


def run_page(store: Store, run_key: str, prices: Sequence[PriceList] = ()) -> Page:
    """Return the report of one run; `prices` are lists at which its cost is shown too.

    Raises:
        ConfigError: there is no such run.
        StoreError: the workspace could not be read.
    """
    snapshot = Snapshot(store)
    run = read_run(snapshot, run_key)
    pipeline = f"pipeline {run.plan.config.pipeline}" if run.plan else ""
    failed, more_problems = _failures(store, run)
    changes, unread_changes = _changes(store, run)
    published, unpublished, unread_targets = _publications(store, run)
    decided, unread_decisions = _decisions(store, run)
    stages = _stages(store, run)
    budgets = budget_of_run(run.plan.config, run) if run.plan else ()
    return Page(
        title=f"{run.span}: {run.state} (run {run_key})",
        workspace=store.uri,
        key=REPORT.key(run=run_key),
        heading=run.span,
        summary=_summary(run),
        about=(", ".join(filter(None, (f"run {run_key}", run.lineage and f"lineage {run.lineage}", pipeline))),),
        state=state(run.state, ended_as(run.state, run.release.number if run.release else None, run.failure)),
        tiles=tuple(_tiles(run)),
        boxes=(*_overridden(run), *_trouble(store, run), *budget_boxes(budgets), *unpublished,
               *unreadable((*snapshot.problems, *more_problems, *unread_changes, *unread_targets, *unread_decisions))),
        sections=(*stages, *published, *changes,
                  *cost_section(_costs(run, prices)), *account.by_stage(run.attempts, run.results),
                  *planned.against_actual(run),
                  *account.attempts(run.attempts), *failed,
                  *decided, *origin.invocations(run.invocations), *_origin(store, run, (*stages, *published))),
        near=(Cell("History of all runs", key=HISTORY_KEY), *_data_pages(store, run)),
    )  # fmt: skip


def _costs(run: Run, prices: Sequence[PriceList]) -> Costs:
    costs = costs_of([run], dt.datetime.now(dt.UTC) if run.state is RunState.RUNNING else None)
    return costs.at(prices) if prices else costs


def _stages(store: Store, run: Run) -> tuple[Section, ...]:
    try:
        serving = run.snapshot.current
    except StoreError:  # the history names it
        serving = None
    made = []
    for stage in Stage:
        if (outcome := run.outcome(stage)) is not None:
            own = tuple(record for record in run.attempts if record.stage is stage)
            number = serving.number if serving else None
            of_release = run.judgement.release_verdicts if run.judgement else ()
            facts_of = StageFacts(
                store.uri, run.plan, outcome, own, run.judgement, run.release, of_release, number,
                health=run.outcome(Stage.health),
            )  # fmt: skip
            made.append(section_of(stage, facts_of))
    return tuple(made)


def _data_pages(store: Store, run: Run) -> tuple[Cell, ...]:
    """Return links to the pages of the run's data that exist."""
    try:
        found = judged_rows(store, run)
    except StoreError:  # _failures names it
        return ()
    if found is None:
        return ()
    columns = (Cell("Its data, column by column", key=DATA_PAGE.key(run=run.run_key)),) if found.profiles else ()
    apart = (Cell("Rows set apart (in millrace serve)", key=ROWS_PAGE.format(run=run.run_key)),)
    return (*columns, *(apart if found.quarantine or found.waiting else ()))


def _failures(store: Store, run: Run) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """Return the attempts that failed, and a sentence for findings that can't be read."""
    try:
        return account.failures(store, run.attempts), ()
    except StoreError as error:
        return (), (str(error),)


def _changes(store: Store, run: Run) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """Return the changes of the run's release, if on record, and a sentence for a record that can't be read."""
    try:
        changes = read_changes(store, run.run_key, run.release.number if run.release else None)
    except StoreError as error:
        return (), (str(error),)
    return ((changes_section(changes),) if changes else ()), ()


def _decisions(store: Store, run: Run) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """Return the decisions on record about the run's spans, and a sentence for a record that can't be read."""
    try:
        return planned.decision_sections(store, run.plan) if run.plan is not None else (), ()
    except StoreError as error:
        return (), (str(error),)


def _publications(store: Store, run: Run) -> tuple[tuple[Section, ...], tuple[Section, ...], tuple[str, ...]]:
    """Return the publications of the run's release, boxes of failures, and unreadable records."""
    if run.release is None:
        return (), (), ()
    configured = run.plan.config.publish.targets if run.plan else ()
    try:
        found = of_release(store, run.release.number, configured)
    except StoreError as error:
        return (), (), (str(error),)
    return (
        publications.publications_section(found, run.release),
        publications.failed_publications(found, store.uri, run.release),
        (),
    )


def _origin(store: Store, run: Run, sections: tuple[Section, ...]) -> tuple[Section, ...]:
    plan = run.plan
    if plan is None:
        return ()
    data = (*origin.data(plan, _parent_run(store, run)), *origin.places(plan))
    from_where = Section("Where it comes from", id="origin", tables=(facts(data),), commands=origin.commands(plan))
    done = [origin.stored(plan, stage) for stage in run.results]
    named = [each for section in sections for each in section.files]
    return (origin.settings(plan), from_where, files((*done, *named)))


def _summary(run: Run) -> str:
    """Return one sentence about the whole run."""
    if not run.began_at:
        return "It was planned, and nothing of it has begun."
    took = f"{duration(run.wall_seconds)} of attempts, begun {moment(run.began_at)}"
    match run.state:
        case "Released" | "Held" if run.release:
            waits = " It waits until the hold is lifted." if run.state is RunState.HELD else ""
            model, vectors = run.release.model, plural(run.release.vectors, "vector")
            made = (
                f" and its {vectors}"
                if model.items is None
                else f" of queries and the {vectors} of {model.items.version}"
            )
            return (
                f"Model {model.version}{made} became release {run.release.number} at "
                f"{moment(run.release.created_at)}, after {took}.{waits}"
            )
        case "Rejected":
            return f"The gates refused the model, so the champion stays. It took {took}."
        case "Running":
            return f"It is running: {took}."
        case "Lost":
            return f"Its process was killed, after {took}. What was finished is kept."
        case "Failed" | "Cancelled":
            return f"It stopped after {took}. What was finished is kept."
        case _ if run.judgement is not None:
            return f"Its model was judged and not released. It took {took}."
        case _:
            return f"It ended before a release or a rejection, after {took}."


def _tiles(run: Run) -> list[Tile]:
    summed, inferred = run.totals, run.outcome(Stage.infer)
    failed = summed.attempts - summed.succeeded
    tiles = [
        Tile("Time", Cell(duration(run.wall_seconds)), f"begun {moment(run.began_at)}" if run.began_at else ""),
        Tile("Goodput", Cell(share(summed.goodput)), f"{duration(summed.seconds.queued)} in queues besides"),
        Tile("Attempts", Cell(str(len(run.attempts))), f"{failed or 'none'} failed"),
        Tile("Cost", Cell(dollars(summed.cost)), basis_of(summed.charges)),
    ]
    judged = [verdict for verdict in (run.judgement.verdicts if run.judgement else ()) if verdict.of == "challenger"]
    first_of = {verdict.metric: verdict for verdict in reversed(judged)}
    for verdict in list(reversed(first_of.values()))[:2]:
        baseline = f"{verdict.against or 'champion'} {number(verdict.baseline)}" if verdict.baseline is not None else ""
        tiles.append(Tile(verdict.metric, Cell(number(verdict.value)), baseline))
    if isinstance(inferred, InferOutcome):
        released = f"release {run.release.number}" if run.release else ""
        tiles.append(Tile("Vectors", Cell(count(inferred.vectors)), released))
    return tiles


def _overridden(run: Run) -> tuple[Section, ...]:
    """Return the boxes on people who let the run pass or were asked; empty without any."""
    overrides = run.release.overrides if run.release else run.judgement.overrides if run.judgement else ()
    refusals = "\n".join(refusal for each in overrides for refusal in each.refusals)
    lines = by_human(overrides)
    said = (Section("Accepted by a human", lines, id="override", mood="refused", quote=refusals),) if lines else ()
    if run.judgement is None or not (about := asked(run.judgement)):
        return said
    quote = "\n".join(run.judgement.decision.about if run.judgement.decision else run.judgement.asks)
    title = "Decided by a human" if run.judgement.decision else "It waits for an answer"
    return (*said, Section(title, about, id="answer", mood="refused", quote=quote))


def _trouble(store: Store, run: Run) -> tuple[Section, ...]:
    """Return the box at the top of a run that did not end in a release."""
    match run.state:
        case "Released":
            return ()
        case "Held":
            hold = run.snapshot.hold
            lift = Command("Once it is lifted, the next run or refresh makes it current:", ("millrace hold --off",))
            lines = (hold.sentence,) if hold is not None else ()
            return (Section("Its release waits", lines, id="trouble", mood="refused", commands=(lift,)),)
        case "Rejected":
            lines = (
                f"Nothing has to be repaired: the champion and its vectors stay. {_next_start(store, run)}",
                f"Look at the slices and the data below; {RUNBOOK} says how to find what made the model worse.",
            )
            return (Section("Rejected by the gates", lines, id="trouble", mood="refused", quote=run.message),)
        case "Running":
            return (Section("It is running", (_running(run),), id="trouble", mood="going"),)
        case "Failed" | "Cancelled":
            stage = run.attempts[-1].stage.value if run.attempts and run.attempts[-1].failure else ""
            message = _message(store, run)
            return (failure.section(run.failure or FailureClass.CODE, message, stage, _again(store, run)),)
        case _ if (box := origin.branch_section(store, run)) is not None:
            return (box,)
        case _:
            go_on = Command("Run the span again, and it continues from here:", tuple(_again(store, run).splitlines()))
            title = "Lost: its process is gone" if run.state is RunState.LOST else "Not finished"
            return (
                Section(title, id="trouble", mood="bad" if title != "Not finished" else "going", commands=(go_on,)),
            )


def _message(store: Store, run: Run) -> str:
    """Return the last message of the run; only its first line for rejected rows, which have a section below."""
    try:
        found = read_data_failure(store, run.attempts[-1]) if run.attempts else None
    except StoreError:  # _failures names it
        found = None
    return data_message(run.message, found)


def _next_start(store: Store, run: Run) -> str:
    """Return the checkpoint that the next run starts from, or the error if a record is unreadable."""
    if run.plan is None:
        return ""
    try:
        return next_start(store, run.plan.config.model_copy(update={"lineage": branches.root(store, run.lineage)}))
    except StoreError as error:
        return str(error)


def _running(run: Run) -> str:
    open_attempts = [each for each in run.attempts if each.ended_at is None]
    last = run.invocations[-1] if run.invocations else None
    doing = [f"{each.stage.value} {each.attempt} since {moment(each.started_at)}" for each in open_attempts[-1:]]
    if last is not None:
        doing.append(f"the deadline is {moment(last.deadline)}")
    return sentence("; ".join((*doing, "if no process works on it, run the span again")))


def _again(store: Store, run: Run) -> str:
    """Return the command that continues the run, with `--config` if the run's settings are a file on this machine."""
    return with_settings(f"millrace run --span {run.span}", store.uri, run.run_key)


def _parent_run(store: Store, run: Run) -> str | None:
    """Return the run that made the parent checkpoint; None without a parent, or if its state is gone."""
    if run.plan is None or run.plan.parent is None:
        return None
    try:
        return CheckpointState.model_validate_json(store.read(f"{run.plan.parent.prefix}/{STATE}")).run_key
    except (FileNotFoundError, ValidationError):
        return None


DONE, OPEN = Cell("done", "✓", "good"), Cell("not reached", "○", "quiet")


def shortened_page(run: Run, page: Page, with_costs: bool = False) -> Page:
    """Return the top of a run's page, its gates, its stages and, on request, its cost; `page` is the whole one."""
    title = {section.id: section.title.partition(": ")[2] for section in page.sections}
    failures = tuple(_without_good_news(each) for each in page.sections if each.id == "failures")
    costs = tuple(each._replace(tables=each.tables[:1]) for each in page.sections if with_costs and each.id == "cost")
    return page._replace(sections=(*failures, *_gates(run), _stage_lines(run, title), *costs, _more(run, page)))


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


def _stage_lines(run: Run, titles: dict[str, str]) -> Section:
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
