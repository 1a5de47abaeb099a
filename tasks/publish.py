"""Publishing, control side: a worker for each target of the configuration, one at a time.

It is not a stage: a failure does not change the current release. A failed target keeps serving its old release.
"""

import contextlib
from collections.abc import Callable, Iterator

from configs.schema.config import Config
from configs.schema.stages import AnyTarget, narrowing
from infra.store.base import Conflict, Store
from infra.store.factory import open_store
from tasks.contracts.jobs import PublishInputs
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.clock import now, sleep
from tasks.foundation.errors import ERRORS, CancelledError, StageError
from tasks.running.context import override_context, stage_context
from tasks.running.stage import make_page, run_stage, stage_task
from tasks.running.stage_output import StageOutput, logger
from tasks.runs import releases, served_targets
from tasks.runs.served_targets import Served

ASK_SECONDS = 2.0  # between two checks that another publication to the target has ended

Publication = Callable[[RunPlan, Release, AnyTarget, bool], Served | None]


@stage_task
def publish(
    plan: RunPlan, release: Release, target: AnyTarget, only_current: bool, take_over: bool = False
) -> Served | None:
    """Publish a release to one target; return None if it was left alone because another release is current.

    Args:
        only_current: True to leave the target alone in that case.
        take_over: True to publish to a target that serves another workspace too.

    Raises:
        StageError: the worker failed, with its failure class; the target serves its old release.
    """
    store = open_store(plan.workspace)
    with _turn(store, target.name), served_targets.announced(store, target.name, release):
        before = served_targets.measured(store, release.number, target.name) if narrowing(target) else None
        measured = before.table if before is not None and before.narrow is not None else None
        more = {"take_over": take_over, "measured": measured}
        inputs = _inputs(release, target, only_current).model_copy(update=more)
        outcome = _fresh_outcome(store, plan, inputs)
        if outcome.table is None or outcome.recall is None or outcome.query_ms is None or outcome.queries is None:
            logger().warning("target %s was left alone: release %d is not current", target.name, release.number)
            return None
        known = before.narrow if before is not None and before.table == outcome.table else None
        found = Served(
            target=target,
            release=release.number,
            table=outcome.table,
            model_version=release.model.version,
            vectors=outcome.vectors,
            index=outcome.index,
            recall=outcome.recall,
            query_ms=outcome.query_ms,
            queries=outcome.queries,
            narrow=outcome.narrow or known,
            at=now(),
            run_key=plan.run_key,
        )
        served_targets.note(store, found)
        return found


def swap_back(store: Store, config: Config, release: Release) -> None:
    """Switch each target to the current release if it still has the release's table; load and check nothing.

    This is the quick part of a rollback, for all targets before `publish_to_all` checks any of them. Only a table that
    was checked when it was published is used. `publish_to_all` handles targets that fail or have lost the table.
    """
    for target in config.publish.targets:
        checked = served_targets.measured(store, release.number, target.name)
        if checked is None or narrowing(checked.target) != narrowing(target):
            logger().warning(
                "target %s has no checked table of release %d: it is loaded first", target.name, release.number
            )
            continue
        try:
            with _turn(store, target.name):
                plan = _plan(store, config, release, target)
                inputs = _inputs(release, target, only_current=True).model_copy(update={"swap_alone": True})
                if _fresh_outcome(store, plan, inputs).table is not None:
                    served_targets.note(store, checked.model_copy(update={"target": target, "at": now()}))
                    logger().warning(
                        "target %s serves release %d again, and is checked now", target.name, release.number
                    )
                else:
                    logger().warning(
                        "target %s has no table of release %d any more: it is loaded again, and serves what it served "
                        "until then",
                        target.name,
                        release.number,
                    )
        except CancelledError:
            raise
        except StageError as error:
            logger().warning("target %s was not swapped at once: %s", target.name, error)


def publish_release(store: Store, plan: RunPlan, release: Release) -> None:
    """Publish a release to all targets, in the current flow run, if it is the current one; make its page again.

    Args:
        plan: plan of the run that made the release.

    Raises:
        StageError: a target failed; raised after all were tried, with the class of the first failure. The message
            names the release that each failed target serves.
    """
    current = releases.current(store)
    for each in served_targets.left_out(store, plan.config.publish.targets):
        logger().warning("target %s: publish.targets does not have it; millrace publish --config FILE swaps it", each)
    if plan.config.publish.targets and current is not None and current.number == release.number:
        try:
            with override_context(page_maker=None):  # one page for all targets: the release's
                publish_to_all(store, plan.config, release, True, carry_out=_in_flow_run)
        finally:
            make_page(plan, Stage.release, release)


def publish_to_all(
    store: Store,
    config: Config,
    release: Release,
    only_current: bool,
    again: str | None = None,
    carry_out: Publication = publish.fn,
) -> tuple[Served, ...]:
    """Publish a release to all targets, one after another; return a record for each, except the ones left alone.

    Args:
        again: the command that goes on after a failure; default: without the file of the settings.
        carry_out: publishes to one target; the default needs no flow run.

    Raises:
        StageError: as `publish_release`.
    """
    done: list[Served] = []
    failed: list[tuple[AnyTarget, StageError]] = []
    for target in config.publish.targets:
        try:
            found = carry_out(_plan(store, config, release, target), release, target, only_current)
            done += [found] if found is not None else []
        except CancelledError:
            raise
        except StageError as error:
            failed.append((target, error))
    if failed:
        sentences = [f"{_standing(store, target)}: {error}" for target, error in failed]
        again = again or f"millrace publish --workspace {store.uri}, with the same settings"
        raise ERRORS[failed[0][1].failure](
            f"release {release.number} is current in {store.uri}, but not everywhere.\n"
            + "\n".join(sentences)
            + f"\nTo go on from what is loaded: {again}"
        ) from failed[0][1]
    return tuple(done)


def _in_flow_run(plan: RunPlan, release: Release, target: AnyTarget, only_current: bool) -> Served | None:
    """Publish in a task run named as in `publish 3 look`."""
    return publish.called(plan.run_key.replace("-", " "))(plan, release, target, only_current)


def _inputs(release: Release, target: AnyTarget, only_current: bool) -> PublishInputs:
    return PublishInputs(
        target=target.name,
        release=release.number,
        model_version=release.model.version,
        vectors_by=release.model.of_items.version,
        vectors=release.vectors_prefix,
        vectors_sha256=release.vectors_sha256,
        model=release.model_prefix,
        model_sha256=release.model_sha256,
        rows=release.rows,
        only_current=only_current,
    )


def _plan(store: Store, config: Config, release: Release, target: AnyTarget) -> RunPlan:
    return RunPlan(
        run_key=served_targets.publication(release.number, target.name),
        span=release.span,
        window=(),
        history=(),
        parent=release.model.checkpoint,
        workspace=store.uri,
        config=config,
    )


def _fresh_outcome(store: Store, plan: RunPlan, inputs: PublishInputs) -> PublishOutcome:
    """Run the worker. The result is always deleted, since only the target knows its present state."""
    while True:
        with override_context(was_done=False):
            outcome = run_stage(plan, inputs, PublishOutcome)
            left_over = stage_context().was_done
        store.delete(RESULT.key(run=plan.run_key, stage=Chore.publish))
        if not left_over:  # left over by a publication whose waiter died
            return outcome


@contextlib.contextmanager
def _turn(store: Store, name: str) -> Iterator[None]:
    """Wait until no other process publishes to the target, and hold its lock inside the block."""
    waiter, said = StageOutput(), False
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(store.lock(served_targets.lock_of(name)))
                break
            except Conflict as error:
                if not said:
                    logger().warning("waiting for another publication to target %s: %s", name, error)
                    said = True
                waiter.pulse()
                sleep(ASK_SECONDS)
        yield


def _standing(store: Store, target: AnyTarget) -> str:
    """Return a sentence with the last known release of a target."""
    last = served_targets.of_target(store, target.name)
    still = f"still serves release {last.release}" if last else "serves no release yet"
    return f"Target {target.name} ({target.kind}) {still}"
