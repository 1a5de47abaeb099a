"""`millrace publish`: a release for the search services, and which one each of them serves."""

import functools
import os
import shlex
from typing import Annotated

import typer
from pydantic import Field

import tasks.runs.releases
from configs.schema.config import Config
from flows.cli.terminal.command import command
from flows.cli.terminal.console import say
from flows.cli.terminal.options import RunOptions
from flows.cli.terminal.progress_bars import display
from flows.presentation.run.report import write_run_report
from flows.presentation.wording import OF_INDEX, WITHOUT_INDEX, plural
from tasks.contracts.runs import Release
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.running.context import override_context
from tasks.runs import served_targets
from tasks.runs.served_targets import Served


class PublishOutput(Record):
    """`millrace publish`."""

    release: int
    targets: tuple[Served, ...] = Field(description="state of each target now")


def show(output: PublishOutput) -> None:
    """Print the targets for people."""
    show_targets(output.targets, output.release)


def show_targets(targets: tuple[Served, ...], current: int | None) -> None:
    """Print a line for each target; one that serves another release than the current one says so."""
    for each in targets:
        differs = f"; NOT THE CURRENT RELEASE, {current}: millrace publish" if current != each.release else ""
        of = OF_INDEX if each.index is not None else WITHOUT_INDEX
        say(
            f"target {each.target.name} ({each.target.kind}): release {each.release} in {each.table}, "
            f"{plural(each.vectors, 'vector')}, recall@10 {each.recall:.4f} {of}{differs}"
        )


@command(show)
def publish(
    options: RunOptions,
    number: Annotated[
        int | None, typer.Option("--release", help="Number of the release; default: the current one.")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also publish to a target that another workspace publishes to.")
    ] = False,
) -> PublishOutput:
    """Bring a release to the search services of publish.targets; existing vectors are only checked."""
    config, store = options.config(), options.store
    if not config.publish.targets:
        raise ConfigError("publish.targets is empty: name where to publish to, see docs/publish.md")
    release = tasks.runs.releases.current(store)
    if number is not None:
        release = tasks.runs.releases.read(store, number)
    if release is None:
        raise ConfigError(tasks.runs.releases.no_current(store, "to publish"))
    try:
        targets = _publish(options, config, release, only_current=number is None, take_over=take_over)
    finally:
        if store.exists(REPORT.key(run=release.run_key)):
            write_run_report(store, release.run_key)  # or it would show outdated targets
    return PublishOutput(release=release.number, targets=targets)


def follow(options: RunOptions, release: Release) -> tuple[Served, ...]:
    """Let all targets with a published release serve the current one: first swap each, then check all.

    Addresses and names of secrets come from the options, because anyone who may write to the workspace could change
    its records.

    Raises:
        ConfigError: the options lack a target; all others were tried.
        StageError: of the class of the first target that failed.
    """
    store, names = options.store, {each.target.name for each in served_targets.of_all_targets(options.store)}
    if not names:
        return ()
    config = options.config()
    own = tuple(target for target in config.publish.targets if target.name in names)
    config = config.model_copy(update={"publish": config.publish.model_copy(update={"targets": own})})
    found = _publish(options, config, release, only_current=True, swap_first=True) if own else ()
    if left_out := served_targets.left_out(store, config.publish.targets):
        raise ConfigError(
            f"release {release.number} is current in {store.uri}, but not everywhere: {' and '.join(left_out)}. Your "
            "settings have no such target, and no address is taken from the workspace. Swap them too: millrace publish "
            "--config FILE, with the settings that have them; or forget one that is used no more: delete "
            "releases/targets/NAME.json"
        )
    return found


def _publish(
    options: RunOptions,
    config: Config,
    release: Release,
    only_current: bool,
    swap_first: bool = False,
    take_over: bool = False,
) -> tuple[Served, ...]:
    store = options.store
    again = shlex.join(["millrace", "publish", *options.arguments()])
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # else each warning shows twice

    from tasks.publish import publish as publish_to_one
    from tasks.publish import publish_to_all, swap_back  # only now: it imports Prefect, which reads the environment

    with display() as listener, override_context(listener=listener):
        if swap_first:
            swap_back(store, config, release)
        carry_out = functools.partial(publish_to_one.fn, take_over=take_over)
        return publish_to_all(store, config, release, only_current, again, carry_out)
