"""`millrace hold` and `millrace hold --off`, and the releases that waited meanwhile."""

from pydantic import Field

import tasks.runs.holds
from flows.cli.terminal.console import say
from infra.store.base import Store
from tasks.contracts.runs import Hold, Release
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record


class HoldOutput(Record):
    """`millrace hold`."""

    held: bool = Field(description="whether releases are held now")
    hold: Hold = Field(description="the hold that was set or lifted")
    waiting: tuple[Release, ...] = Field(description="made during a hold that was lifted: the next run decides them")


def hold(store: Store, reason: str | None, off: bool) -> HoldOutput:
    """Set a hold with a reason, or lift it. Raises as `tasks.runs.holds` does."""
    if off and reason is not None:
        raise ConfigError("hold: give --reason or --off, not both")
    if off:
        lifted, waiting = tasks.runs.holds.lift(store)
        return HoldOutput(held=False, hold=lifted, waiting=waiting)
    return HoldOutput(held=True, hold=tasks.runs.holds.hold(store, reason or ""), waiting=())


def show(output: HoldOutput) -> None:
    """Print what is held, and how to go on."""
    if output.held:
        say(output.hold.sentence, "Runs end as Held and keep their models; refreshes end at once. Lift it with:")
        say("  millrace hold --off")
        return
    say("releases are not held any more")
    for release in output.waiting:
        say(
            f"release {release.number} of {release.span.name}, by model {release.model.version}, was made meanwhile: "
            f"the next run or refresh makes it current, unless a later span serves; at once: "
            f"millrace rollback --to {release.number}"
        )
