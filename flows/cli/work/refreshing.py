"""`millrace refresh`: check that there is something to do, then run the flow in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from configs.load import load_config
from flows.cli.terminal.console import say
from flows.cli.work.running import run_flow
from flows.presentation.wording import count, plural
from infra.store.base import Store
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.foundation.records import Record
from tasks.runs import releases
from tasks.runs.plan import NothingToDo
from tasks.runs.refreshes import plan_refresh
from tasks.runs.results import Refusal, read_result


class RefreshOutput(Record):
    """`millrace refresh`."""

    state: Literal["Released", "Rejected", "Held", "NothingToDo"]
    sentence: str
    run_url: str | None = Field(description="the flow run's page; null if there was nothing to do")
    release: Release | None
    embedded: int | None = Field(description="items that got a new vector; the others kept theirs")


def refresh(store: Store, config_file: Path | None, overrides: Sequence[str], verbose: bool) -> RefreshOutput:
    """Bring the current release up to date. That nothing is new is a result.

    Raises:
        StageError: of the class that stopped the refresh.
    """
    if (hold := releases.hold_of(store)) is not None:
        sentence = f"{hold.sentence} Nothing is refreshed until: millrace hold --off"
        return RefreshOutput(state="Held", sentence=sentence, run_url=None, release=None, embedded=None)
    try:
        plan_refresh(store, load_config(config_file, overrides))  # what can't be planned needs no server
        done = run_flow("refresh", verbose, store.uri, str(config_file) if config_file else "", tuple(overrides))
    except NothingToDo as error:
        return RefreshOutput(state="NothingToDo", sentence=str(error), run_url=None, release=None, embedded=None)
    release = done.value
    if release is None:
        sentence = "nothing was done: another process refreshes this lineage, or has just done it"
        return RefreshOutput(state="NothingToDo", sentence=sentence, run_url=done.run_url, release=None, embedded=None)
    if isinstance(release, Refusal):
        sentence = f"{release.why} The current release stays."
        return RefreshOutput(state="Rejected", sentence=sentence, run_url=done.run_url, release=None, embedded=None)
    assert isinstance(release, Release)
    result = read_result(store, release.run_key, Stage.infer)
    assert result is not None
    assert isinstance(result.outcome, InferOutcome)
    embedded = result.outcome.vectors - result.outcome.vectors_reused
    return RefreshOutput(
        state="Released",
        sentence=f"release {release.number} has {plural(release.vectors, 'vector')}, {count(embedded)} of them new, by "
        f"the model of release {release.refreshed}",
        run_url=done.run_url,
        release=release,
        embedded=embedded,
    )


def show(output: RefreshOutput) -> None:
    """Print the result for people."""
    say(output.sentence)
