"""`millrace releases`, `rollback`, `hold` and `publish`: the releases, the current one, and what services have."""

import contextlib
import functools
import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from pydantic import Field

import tasks.runs.holds
import tasks.runs.releases
import tasks.runs.rollback
from configs.prices import basis_of, cost_of
from configs.schema.config import Config
from configs.schema.operations import Charge
from configs.schema.stages import narrowing
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions
from flows.cli.terminal.progress_bars import display
from flows.presentation import queries
from flows.presentation.model import Command, Parts, table
from flows.presentation.run.report import write_run_report
from flows.presentation.wording import BY_NARROW, OF_INDEX, WITHOUT_INDEX, dollars, moment
from infra import prefect_server
from infra.prefect_health import PASSWORD_OF_CLIENT
from infra.store.base import Store
from infra.store.records import NewerRecord
from tasks.contracts.evaluation import MAIN
from tasks.contracts.runs import Hold, Release
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import ConfigError, HostError, ServerError, StoreError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.monitoring.work_sums import work_sums
from tasks.running.context import override_context
from tasks.runs import served_targets
from tasks.runs.audit import audited
from tasks.runs.run import read_runs
from tasks.runs.served_targets import Served
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import sums_of


class PublishOutput(Record):
    """`millrace publish`."""

    release: int
    targets: tuple[Served, ...] = Field(description="state of each target now")


def publish_page(output: PublishOutput) -> Parts:
    """Return the targets."""
    return target_lines(output.targets, output.release)


def target_lines(targets: tuple[Served, ...], current: int | None) -> Iterator[str]:
    """Yield a line for each target; one that serves another release than the current one says so."""
    for each in targets:
        differs = f"; NOT THE CURRENT RELEASE, {current}: millrace publish" if current != each.release else ""
        of = OF_INDEX if each.index is not None else WITHOUT_INDEX
        yield (
            f"target {each.target.name} ({each.target.kind}): release {each.release} in {each.table}, "
            f"{plural(each.vectors, 'vector')}, recall@10 {each.recall:.4f} {of}{_narrow(each)}{differs}"
        )


def _narrow(of: Served) -> str:
    """Return the recall of narrow vectors, to be added to a line; empty: the target has the release's own."""
    if of.narrow is None:
        return ""
    recall, whole = of.narrow.recall_at_10, of.narrow.whole
    return f"; {recall:.4f} {BY_NARROW} ({narrowing(of.target)}), {whole:.4f} by the release's"


@command(publish_page)
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


log = logging.getLogger("millrace")


class UnreadableRelease(Record):
    number: int
    trouble: str = Field(description="file, defect, and way out")


class ReleasesOutput(Record):
    """`millrace releases`, oldest first."""

    current: int | None = Field(description="number of the current release; null before the first")
    releases: tuple[Release, ...] = Field(description="releases with a readable record")
    unreadable: tuple[UnreadableRelease, ...]
    pruned: tuple[int, ...] = Field(
        description="numbers of the releases whose model or vectors were deleted by millrace prune"
    )
    costs: dict[int, float | None] = Field(
        description="number -> dollars of the run or refresh that made it; null: a machine has no price"
    )
    cost_basis: str = Field(description="basis, region and dates of these prices, or the machines without a price")


class RollbackOutput(Record):
    """`millrace rollback`: the release that is current now, and the one that was."""

    before: Release | None = Field(description="release that was current before; null: not known")
    release: Release = Field(description="release that is current now")
    hold: Hold | None = Field(description="hold that keeps it current; null: the next run or refresh may change it")
    targets: tuple[Served, ...] = Field(description="state of each target now")


class HoldOutput(Record):
    """`millrace hold`."""

    held: bool = Field(description="true: releases are held now")
    hold: Hold = Field(description="hold that was set or lifted")
    waiting: tuple[Release, ...] = Field(description="releases made during the lifted hold; the next run decides them")


def releases_page(output: ReleasesOutput) -> Parts:
    """Yield a line for each release."""
    if not output.releases and not output.unreadable:
        yield "no release yet"
        return
    yield from (f"release {each.number} can't be shown: {each.trouble}" for each in output.unreadable)
    priced = any(cost is not None for cost in output.costs.values())
    yield table(
        "",
        [">release", "", "span", "made at", "model", ">vectors", *([">cost"] if priced else ()),
         *queries.columns(MAIN), "~let pass by"],
        (
            [
                str(release.number),
                "current" if release.number == output.current else "pruned" * (release.number in output.pruned),
                release.span.name,
                moment(release.created_at),
                release.model.version,
                f"{release.vectors:,}",
                *([dollars(output.costs[release.number])] if priced else ()),
                *queries.cells(release.by_queries, MAIN),
                "; ".join(f"{each.name}: {each.reason}" for each in release.overrides),
            ]
            for release in output.releases
        ),
    )  # fmt: skip
    if priced:
        yield f"cost: the run or refresh that made it, {output.cost_basis}"


@command(releases_page)
def releases(store: Store) -> ReleasesOutput:
    """List all releases and mark the current one."""
    # An unreadable release must not hide the others.
    _, pointer = tasks.runs.releases.read_pointer(store)
    readable, unreadable = [], []
    numbers = {*tasks.runs.releases.numbers(store), *([pointer.release] if pointer else [])}  # its own may be gone
    for each in sorted(numbers):
        try:
            readable.append(tasks.runs.releases.read(store, each))
        except (StoreError, NewerRecord) as error:
            unreadable.append(UnreadableRelease(number=each, trouble=str(error)))
    charges = _charges(store, readable)
    return ReleasesOutput(
        current=pointer.release if pointer else None,
        releases=tuple(readable),
        unreadable=tuple(unreadable),
        pruned=tuple(sorted(tasks.runs.releases.pruned(store))),
        costs={number: cost_of(found) if found else None for number, found in charges.items()},
        cost_basis=basis_of(each for found in charges.values() for each in found),
    )


def _charges(store: Store, made: Sequence[Release]) -> dict[int, Sequence[Charge]]:
    """Return the charges of the run or refresh behind each release, by number: of all its attempts that ended."""
    found: dict[str, Sequence[Charge]] = {}
    # A damaged file elsewhere makes costs unknown, and hides no release.
    with contextlib.suppress(StoreError, NewerRecord):
        found |= {run.run_key: sums_of(run.attempts).charges for run in read_runs(Snapshot(store), ())}
        found |= {run_key: row.charges for run_key, row in work_sums(store, (), None).rows.items()}
    return {each.number: found.get(each.run_key, ()) for each in made}


def rollback_page(output: RollbackOutput) -> Parts:
    """Yield the release that serves now, and the one before."""
    yield f"current release: {_by_model(output.release)}"
    if output.before is not None:
        yield f"before: {_by_model(output.before)}"
    if output.hold is None:
        yield 'The next run or refresh may release again. To prevent that: millrace hold --reason "why"'
    else:
        yield output.hold.sentence
    yield from target_lines(output.targets, output.release.number)


@command(rollback_page)
def rollback(
    options: RunOptions,
    to: Annotated[int | None, typer.Option(help="Release to go back to; default: the previous model's newest.")] = None,
) -> RollbackOutput:
    """Make an earlier release current again; model, vectors and the targets of publish.targets change together."""
    store = options.store
    options.config()  # before anything changes
    try:
        serving = tasks.runs.releases.current(store)
    except StoreError:  # the rollback repairs this
        serving = None
    with audited(store, "rollback", serving=serving.number if serving else None, to=to):
        release = tasks.runs.rollback.rollback(store, to)
    _announce(store, release, serving)
    hold = tasks.runs.releases.hold_of(store)
    return RollbackOutput(before=serving, release=release, hold=hold, targets=follow(options, release))


def hold_page(output: HoldOutput) -> Parts:
    """Yield the hold, or the releases that wait after it, and how to go on."""
    if output.held:
        yield output.hold.sentence
        ends = "Runs end as Held and keep their models; refreshes end at once. Lift it with:"
        yield Command(ends, ("millrace hold --off",))
        return
    yield "releases are not held any more"
    for release in output.waiting:
        yield (
            f"release {release.number} of {release.span.name}, by model {release.model.version}, was made meanwhile: "
            f"the next run or refresh makes it current, unless a later span serves; at once: "
            f"millrace rollback --to {release.number}"
        )


@command(hold_page)
def hold(
    store: Store,
    reason: Annotated[str | None, typer.Option(help="Reason, shown with the release.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Lift the hold.", show_default=False)] = False,
) -> HoldOutput:
    """Keep the current release: runs end as Held and refreshes do nothing, until --off."""
    if off and reason is not None:
        raise ConfigError("hold: give --reason or --off, not both")
    if off:
        with audited(store, "lift"):
            lifted, waiting = tasks.runs.holds.lift(store)
        return HoldOutput(held=False, hold=lifted, waiting=waiting)
    with audited(store, "hold", reason=reason):
        made = tasks.runs.holds.hold(store, reason or "")
    return HoldOutput(held=True, hold=made, waiting=())


def _announce(store: Store, release: Release, before: Release | None) -> None:
    try:
        server = prefect_server.running(prefect_server.state_home())
    except (HostError, ServerError) as error:
        note(f"the rollback is not announced: {error}")
        return
    if server is None:
        log.debug("the rollback is not announced: no Prefect server runs here")
        return
    # Before Prefect is imported. Its own log would show each warning of a target twice.
    os.environ.update(prefect_server.client_environment(server))
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from flows.orchestration.announcing import announce_rollback

    password = os.environ.get(PASSWORD_OF_CLIENT)
    # In case Prefect was imported before.
    with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: password}):
        announce_rollback(store, release, before)


def _by_model(release: Release) -> str:
    return f"{release.number}, span {release.span.name}, model {release.model.version}"
