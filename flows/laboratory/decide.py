"""`millrace decide`: the worth of training the next span against its cost.

A person may overrule the decision to train the span or to let it wait. Apart from deciding.py, which loads Prefect.
"""

from typing import Annotated, Literal

import typer

from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions
from flows.presentation.model import Parts
from flows.presentation.run.planned import decision_section
from tasks.foundation.errors import ConfigError
from tasks.laboratory import weekly
from tasks.planning.decisions import Action, Decision, overrule
from tasks.runs.audit import audited
from tasks.runs.plan import Idle, NothingToDo

ANSWERS = {"train": Action.train, "longer": Action.longer, "refresh": Action.refresh, "skip": Action.skip}


def decide_page(output: Decision | Idle) -> Parts:
    """Yield the answer, its arithmetic and its evidence."""
    if isinstance(output, Idle):
        yield output.sentence
        return
    yield decision_section(output)
    if output.overruled is not None:
        by_hand = f"millrace run --span {output.span.name}"
        yield f"recorded: scheduled runs with decide.scheduled follow it; by hand: {by_hand}"


@command(decide_page)
def decide(
    options: RunOptions,
    span: Annotated[
        str | None, typer.Option(help="For example 2022-Q4; default: the next that is not decided, or will arrive.")
    ] = None,
    over: Annotated[
        Literal["train", "longer", "refresh", "skip"] | None,
        typer.Option("--overrule", help="Your answer instead of the rule's. Needs --reason."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason of --overrule, shown with the decision.")] = None,
) -> Decision | Idle:
    """Weigh the points that training the next span is worth against its cost: train it, or let it wait.

    A span that waits is trained together with the next one. Nothing is written without --overrule; scheduled runs
    follow the decision if `decide.scheduled` is set, and `millrace run --span SPAN` always trains.
    """
    if (over is None) != (reason is None):
        raise ConfigError("give --overrule ANSWER and --reason TEXT together: both are recorded")
    try:
        made = weekly.decide(options.store, options.config(), span)
    except NothingToDo as nothing:
        if over is not None:
            raise  # there is no decision to overrule
        return Idle(sentence=str(nothing))
    if over is None or reason is None:
        return made
    with audited(options.store, "overrule", span=made.span.name, action=over, reason=reason):
        return overrule(options.store, made, ANSWERS[over], reason)
