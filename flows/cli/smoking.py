"""`millrace smoke`: one line for each rung as it is reached, and below a broken one where to look."""

import os

from rich.text import Text

from flows.cli.terminal import console
from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions
from flows.cli.terminal.progress_bars import display
from flows.presentation.wording import visible
from tasks.foundation.clock import duration
from tasks.foundation.errors import POLICIES
from tasks.running.context import within
from tasks.upkeep.smoke_report import Rung, SmokeReport


def show(report: SmokeReport) -> None:
    """Print the ladder for people."""
    console.show([line for rung in report.rungs for line in _lines(rung)], soft_wrap=True)
    price = f", ${report.dollars:.2f}" if report.dollars else ""
    reached = "every rung holds" if report.passed else f"the ladder broke: {report.failure}"
    console.say(f"{reached}, after {duration(report.seconds)}{price}; record: smoke/{report.key}.json")


@command(show, new=True, exit_code=lambda report: POLICIES[report.failure].exit_code if report.failure else 0)
def smoke(options: RunOptions) -> SmokeReport:
    """Try devices, network, compiler, one step and a checkpoint, on one machine and then on all of the settings."""
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # progress shows here

    from tasks.upkeep.ladder import climb  # only now: Prefect reads the environment when imported

    config = options.config()
    with display() as listener, within(listener=listener):
        return climb(options.store, config, lambda rung: listener.say(_line(rung).plain))


def _lines(rung: Rung) -> list[Text]:
    numbers = ", ".join(f"{name} {value:g}" for name, value in rung.numbers.items())
    lines = [_line(rung), *(Text(f"{'':<6}{visible(said)}") for said in (*rung.sentences, *filter(None, [numbers])))]
    return [*lines, Text(f"{'':<6}-> look at: {rung.mend}")] if rung.mend else lines


def _line(rung: Rung) -> Text:
    word, style = ("ok", "green") if rung.passed else ("FAIL", "bold red")
    machines = f" on {rung.machines} machine{'s' * (rung.machines > 1)}"
    where = f"{rung.workers} worker{'s' * (rung.workers > 1)}{machines}"
    return Text(f"{word:<4}", style=style).append(f"  {rung.name}, {where}", style="default not bold")
