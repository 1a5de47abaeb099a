"""`millrace run --dry-run`: the plan of a run, and whether its data is enough for it."""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from pydantic import Field

from flows.cli.terminal.options import RunOptions
from flows.presentation.model import Parts
from flows.presentation.wording import count, dollars, duration, shortened
from tasks.contracts.costs import RunCost
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import RunPlan
from tasks.foundation.nouns import plural
from tasks.foundation.process import laboratory_is_here
from tasks.foundation.records import Record
from tasks.monitoring.deadlines import next_fire
from tasks.monitoring.estimates import run_cost
from tasks.monitoring.spending import require_budget
from tasks.planning.next_run import plan_run
from tasks.preflight.checks import check_idle, check_plan, unread_settings
from tasks.preflight.enough import Enough, enough
from tasks.preflight.memory import TrainMemory, train_memory
from tasks.quality.expectations import check_arguments
from tasks.quality.sight import Sight
from tasks.runs.plan import NothingToDo

_MOST_HELD = 0.5  # share held out, beyond which less is trained on than measured
_NAME_LETTERS = 40  # longest name of an item


class PlanOutput(Record):
    """The plan of a run."""

    run_key: str
    span: SpanRef
    window: tuple[SpanRef, ...] = Field(description="spans that the run trains on")
    history: tuple[str, ...] = Field(description="names of the spans that the lineage trained on before")
    parent: str | None = Field(description="key of the checkpoint that training starts from")
    parent_step: int | None = Field(description="global step of that checkpoint")
    again: tuple[str, ...] = Field(
        description="spans that are trained again from the last accepted checkpoint, since later models were rejected"
    )


class DryRunOutput(Record):
    """`millrace run --dry-run`. If there is nothing to do, `plan` and `enough` are null and `sentence` says why."""

    config: dict[str, Any] = Field(description="resolved settings, with their keys in YAML")
    plan: PlanOutput | None = Field(description="plan of the run; null: nothing to do")
    enough: Enough | None = Field(description="expected amounts of the run, and the sight of its gates")
    cost: RunCost | None = Field(description="expected time and cost of the run; null: nothing to do")
    memory: TrainMemory | None = Field(
        default=None, description="memory of a training worker; null: no training, or no encoder on this machine"
    )
    sentence: str = Field(description="reason of nothing to do; else empty")
    unread: tuple[str, ...] = Field(default=(), description="settings that nothing reads in this run, with the reason")


def planned(options: RunOptions, span: str | None) -> DryRunOutput:
    """Return the settings and the plan, and count the rows; write nothing.

    Raises:
        ConfigError, DataError: the settings, or the golden set, do not fit the rows; or the schedule is not understood.
    """
    store, config = options.store, options.config()
    check_arguments(config.validate_.expectations)
    next_fire(config.schedule.cron, config.schedule.timezone)
    try:
        plan = plan_run(store, config, span)
        check_plan(store, plan)
        require_budget(store, plan)
        amounts = enough(store, plan)
        return DryRunOutput(
            config=config.tree(),
            plan=_plan_output(plan),
            enough=amounts,
            cost=run_cost(store, plan),
            memory=train_memory(store, plan, amounts.tokens_a_row),
            sentence="",
            unread=tuple(unread_settings(store, plan)),
        )
    except NothingToDo as error:
        check_idle(store, config)
        return DryRunOutput(config=config.tree(), plan=None, enough=None, cost=None, sentence=str(error))


def dry_run_page(output: DryRunOutput, with_settings: bool) -> Parts:
    """Yield plan and amounts; with the settings, as comments below YAML that loads again."""
    if not with_settings:
        yield from _lines(output)
        return
    settings = yaml.safe_dump(output.config, sort_keys=False).rstrip()
    yield "\n".join([settings, *(f"# {line}".rstrip() for line in _lines(output))])


def _lines(output: DryRunOutput) -> Iterator[str]:
    if output.plan is None or output.enough is None or output.cost is None:
        yield output.sentence
        return
    plan = output.plan
    start = f"{plan.parent} (step {plan.parent_step})" if plan.parent else "nothing: it starts the lineage"
    if plan.again:
        start = f"{start}, the last accepted one; trained again: {', '.join(plan.again)}"
    yield f"span:    {plan.span.name} v{plan.span.version}"
    yield f"window:  {', '.join(f'{span.name} v{span.version}' for span in plan.window)}"
    yield f"before:  {', '.join(plan.history) or 'none'}"
    yield f"parent:  {start}"
    yield f"run key: {plan.run_key}"
    yield from (f"unread:  {each}" for each in output.unread)
    yield ""
    yield from _amounts(output.enough, output.cost, output.memory, output.config)
    yield ""
    yield from _sights(output.enough.gates)


def _sights(gates: Sequence[Sight]) -> Iterator[str]:
    yield "The smallest loss that each gate can see, and then refuses four times out of five:"
    for gate in gates:
        yield f"- {gate.sentence}{' (warns only)' if gate.severity == 'warning' else ''}"
    bases = list(dict.fromkeys(gate.basis for gate in gates if gate.basis))
    if bases:
        yield f"Estimated {'; '.join(bases)}. A smaller loss is undecided."
        yield "More held-out queries see smaller losses: longer spans, evaluate.holdout_share, evaluate.golden."


def _amounts(amounts: Enough, cost: RunCost, memory: TrainMemory | None, config: dict[str, Any]) -> Iterator[str]:
    lacking = "a text or a known event" if config["validate"]["events"] else "a text"
    without = f", {count(amounts.rows_unusable)} without {lacking}" if amounts.rows_unusable else ""
    read = f"; counted on the first {count(amounts.rows_read)}" if amounts.rows_read < amounts.rows else ""
    yield f"rows:    {count(amounts.rows)}{without}{read}"
    for few in amounts.few:
        yield f"few:     {few.sentence}; is its export whole? The rest comes by millrace ingest --merge"
    others = amounts.training_rows - amounts.training_pairs
    also = f", and {plural(others, 'other row')} for heads of labels" if others else ""
    yield from _labels(amounts, config["heads"]["classification"])
    yield f"pairs:   about {count(amounts.training_pairs)} to train on{also}"
    train = config["train"]
    yield f"steps:   about {count(amounts.steps)}, of {train['batch_rows']} rows, {plural(train['epochs'], 'epoch')}"
    time = "not known before a first run" if cost.seconds is None else f"about {duration(cost.seconds)}"
    price = f", {dollars(cost.dollars)}" if cost.dollars is not None else ""
    yield f"time:    {time}{price}{'; by stage: millrace plan' if laboratory_is_here() else ''}"
    if memory is not None:
        yield f"memory:  {memory.sentence}"
    yield from _little(amounts, train["batch_rows"], config["evaluate"]["holdout_share"])
    earlier = f", and about {count(amounts.earlier_queries)} of earlier spans" if amounts.earlier_queries else ""
    alone = f"{count(amounts.unseen_queries)} of them unseen: none of their rows is trained on"
    held = f"about {plural(amounts.held_queries, 'query', 'queries')} of {count(amounts.held_pairs)} pairs, {alone}"
    yield f"holdout: {held}{earlier}"
    if amounts.join is not None:
        yield f"join:    {amounts.join.sentence}"
    if amounts.golden_unknown:
        first = ", ".join(repr(shortened(text, _NAME_LETTERS)) for text in amounts.golden_unknown_first)
        of = f"{count(amounts.golden_unknown)} of {plural(amounts.golden_items, 'item')}"
        yield (
            f"golden:  warning: {of} in no span, catalogue or item feed, as {first}; they are measured, but no release "
            "has them: correct the item_id or the text in evaluate.golden, or announce them by millrace ingest --items"
        )


def _little(amounts: Enough, batch: int, share: float) -> Iterator[str]:
    """Yield a line about a holdout that leaves too little to train on."""
    if share > _MOST_HELD or amounts.training_pairs < batch:
        left = f"{count(amounts.training_pairs)} of {plural(amounts.rows, 'row')} are pairs to train on"
        few = f", fewer than the {batch} of train.batch_rows" if amounts.training_pairs < batch else ""
        yield (
            f"little:  warning: about {left}{few}, and evaluate.holdout_share {share:g} is held out; lower it, or "
            "train on more spans at once"
        )


def _labels(amounts: Enough, head: dict[str, Any] | None) -> Iterator[str]:
    """Yield a line about labels that say no, of rows that are trained as hits all the same."""
    if head is not None and amounts.bad_as_hits:
        yield (
            f"labels:  {plural(amounts.bad_as_hits, 'row has', 'rows have')} a label of at most "
            f"{head['negative_max']:g} (heads.classification.negative_max), and are trained as hits too: "
            "heads.contrastive.positives_only=true leaves them out, unless they are opinions, as in reviews"
        )
    elif head is None and amounts.labels is not None and amounts.labels[0] < amounts.labels[1]:
        low, high = amounts.labels
        zeros = f", {count(amounts.bad_as_hits)} of them with the label 0," if amounts.bad_as_hits else ""
        yield (
            f"labels:  from {low:g} to {high:g}, and no head says which rows are hits: all{zeros} are trained as hits; "
            "see docs/models.md#labels-of-pairs"
        )


def _plan_output(plan: RunPlan) -> PlanOutput:
    """Return the part of a plan that differs from run to run."""
    return PlanOutput(
        run_key=plan.run_key,
        span=plan.span,
        window=plan.window,
        history=tuple(rows.span.name for rows in plan.history),
        parent=plan.parent.prefix if plan.parent else None,
        parent_step=plan.parent.step if plan.parent else None,
        again=tuple(span.name for span in plan.branch.again) if plan.branch else (),
    )
