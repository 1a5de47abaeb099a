"""Find the needed folders: all that a kept release, a lineage's head, an unfinished run or backfill refers to.

It only reads the workspace.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from configs.schema.operations import PruneConfig
from infra.store.base import Store
from infra.store.manifest import MissingFolder, read_fact
from infra.store.records import read_record
from tasks.campaigns.stored import read_all
from tasks.contracts.jobs import InferInputs, JobSpec
from tasks.contracts.kinds import LINEAGES, is_refresh, lineage_of, run_of
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.references import CatalogueRef, ModelRef, RowsRef
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import MODEL, PLAN, PRUNED_RUN, SPEC, VERDICTS
from tasks.foundation.clock import now
from tasks.foundation.errors import StoreError
from tasks.judging.rivals import begun_with, compared_with
from tasks.planning.start import chosen_release, is_rejected, last_accepted
from tasks.runs import branches, catalogues, experiments, lineage, releases
from tasks.runs.plan import read_plan
from tasks.runs.results import Judgement, read_result
from tasks.runs.snapshot import Snapshot


class Reach(NamedTuple):
    """The needed releases, folders and runs. Folders are keys of the workspace."""

    releases: tuple[Release, ...]  # kept releases
    folders: frozenset[str]
    unfinished: frozenset[str]  # keys of unfinished runs: all of their files stay
    # Keys of unfinished runs and of the runs of kept heads and releases: their pages stay complete.
    runs: frozenset[str]
    lineages: frozenset[str]
    training: frozenset[str]  # lineages with an unfinished run: the checkpoints made during it stay
    made: Mapping[int, tuple[str, str]]  # each release, pruned ones too -> the folders of its model and vectors


class _Head(NamedTuple):
    run_key: str
    trained_by: Mapping[str, str]  # span -> key of the run


def find_reach(store: Store, policy: PruneConfig) -> Reach:
    """Return the needed releases, folders and runs if the releases of a policy are kept.

    The current release, the one before it, and the newest one with the previous model are always kept. The checkpoints
    of a lineage's previous, first and best release, and its imported initial weights, are kept because evaluations
    measure them.

    Raises:
        StoreError: a record that decides this is not readable; names the file.
    """
    snapshot = Snapshot(store)
    keys = _by_run(store)
    kept = _kept_releases(store, snapshot, policy)
    names = frozenset(lineage_of(key) for key in store.list(LINEAGES))
    folders: set[str] = set()
    heads: dict[str, _Head] = {}
    whole = {release.run_key for release in kept}
    released = {release.run_key for release in snapshot.releases if release.number not in snapshot.late}
    passed = {each.branch: each.run_key for each in experiments.passed(store) if each.run_key not in released}
    for name in names - passed.keys():
        head = lineage.head(store, name)
        accepted = last_accepted(store, name)  # a lineage continues from there after a rejection
        if accepted is not None:
            folders |= {accepted[0].prefix, *(rows.prefix for rows in accepted[1].consumed)}
        branch = branches.branch_of(store, name)
        if branch is not None and branch.base is not None:
            folders.add(branch.base.prefix)
        if head is not None:
            ref, state = head
            folders |= _of_rows(state.consumed)
            by_span = {rows.span.name: rows.run_key for rows in state.consumed}
            heads[name] = _Head(state.run_key, by_span)
            if is_rejected(store, head) and not _is_continued(store, name):
                continue
            folders |= {ref.prefix, *_of_catalogue(store, catalogues.of_run(store, state.run_key))}
            whole.add(state.run_key)
            if state.run_key in keys:
                config = read_plan(store, state.run_key).config
                folders |= {
                    each for release in compared_with(store, config).values() for each in _of_model(release.model)
                }
                if (imported := begun_with(store, config)) is not None:
                    folders.add(imported.prefix)
    for release in kept:
        folders |= {release.model_prefix, release.vectors_prefix, *_of_model(release.model)}
        folders.add(MODEL.key(version=release.model.of_items.version))  # rows name it to who embeds queries
        folders |= _of_catalogue(store, release.catalogue)
    done = {*released, *passed.values()}
    left = {run_key: of_run for run_key, of_run in keys.items() if run_key not in done}
    plans = dict(_unfinished(snapshot, left, heads, releases.current(store), _of_campaigns(store)))
    for run_key, plan in plans.items():
        folders |= _of_unfinished(store, run_key, plan, keys[run_key])
    whole |= plans.keys()
    for run_key in whole:
        warmed = read_result(store, run_key, Stage.warmup)
        if warmed is not None and isinstance(warmed.outcome, WarmupOutcome) and warmed.outcome.compiled is not None:
            folders.add(warmed.outcome.compiled.prefix)
    training = frozenset(plan.config.lineage for plan in plans.values())
    made = {each.number: (each.model_prefix, each.vectors_prefix) for each in snapshot.releases}
    return Reach(kept, frozenset(folders), frozenset(plans), frozenset(whole), names | training, training, made)


def _is_continued(store: Store, name: str) -> bool:
    """Return True if runs continue this lineage, not a branch that was adopted instead."""
    return branches.active(store, branches.root(store, name)) == name


def _by_run(store: Store) -> dict[str, list[str]]:
    """Return the keys of runs and refreshes with a plan, by run key; the sides of a comparison have no plan."""
    found: dict[str, list[str]] = {}
    for key in (*store.list("runs"), *store.list("refreshes")):
        found.setdefault(run_of(key), []).append(key)
    return {run_key: keys for run_key, keys in found.items() if PLAN.key(run=run_key) in keys}


def _kept_releases(store: Store, snapshot: Snapshot, policy: PruneConfig) -> tuple[Release, ...]:
    """Return the releases to keep, except releases that lost their files earlier."""
    every = snapshot.releases
    if snapshot.problems:
        raise StoreError(f"{snapshot.problems[0]}; restore it from a backup; nothing was deleted")
    gone = releases.pruned(store)
    whole = [release for release in every if release.number not in gone]
    numbers: set[int | None] = {release.number for release in whole[-policy.releases :]}
    of_models = {release.model.version: release.number for release in whole}  # the newest of each, the models in order
    numbers |= set(sorted(of_models.values())[-policy.models :])
    since = dt.datetime.fromisoformat(now()) - dt.timedelta(days=policy.days)
    numbers |= {release.number for release in whole if dt.datetime.fromisoformat(release.created_at) > since}
    _, pointer = releases.read_pointer(store)
    if pointer is None and every:
        raise StoreError(
            f"{store.uri}/{releases.CURRENT} is gone, so what serves is not known; write it again: "
            "millrace rollback --to N; nothing was deleted"
        )
    if pointer is not None:
        serving = releases.read(store, pointer.release)
        known = {release.number: release for release in every}  # a year of refreshes is not read one by one
        model_before = releases.of_another_model_before(store, serving, known, gone)
        numbers |= {serving.number, serving.previous, pointer.going_to, *pointer.undecided}
        numbers |= {model_before.number} if model_before is not None else set()
    return tuple(release for release in whole if release.number in numbers)


def _unfinished(
    snapshot: Snapshot,
    keys: Mapping[str, Sequence[str]],
    heads: Mapping[str, _Head],
    serving: Release | None,
    of_campaigns: set[str],
) -> Iterator[tuple[str, RunPlan]]:
    """Yield the runs that may continue: not rejected, and their lineage has not passed them.

    Args:
        keys: the files of each run without a release.
    """
    snapshot.fetch([kind.key(run=run_key) for kind in (VERDICTS, PLAN) for run_key in keys])
    for run_key in keys:
        if is_refresh(run_key) and PRUNED_RUN.key(run=run_key) in keys[run_key]:
            continue  # it is done again under another key
        judged = snapshot.read(VERDICTS.key(run=run_key), Judgement)
        if judged is not None and judged.refused and run_key not in of_campaigns:
            continue
        plan = snapshot.read(PLAN.key(run=run_key), RunPlan)
        if plan is None:
            raise StoreError(f"{snapshot.problems[-1]}; move the folder away; nothing was deleted")
        if is_refresh(run_key):
            going_on = serving is not None and plan.parent == serving.model.checkpoint
        else:
            head = heads.get(plan.config.lineage)
            trained_by = head.trained_by.get(plan.span.name) if head is not None else None
            going_on = trained_by is None or (head is not None and head.run_key == run_key)
        if going_on or run_key in of_campaigns:
            yield run_key, plan


def _of_campaigns(store: Store) -> set[str]:
    """Return the keys of all runs of unfinished campaigns that can still be continued."""
    found: set[str] = set()
    for each in read_all(store):
        if each.state in ("Planned", "Done", "Released", "Rejected"):
            continue
        if each.branch is None or branches.active(store, each.lineage) in (each.on, each.branch):
            found |= {span.run_key for span in each.spans if span.run_key is not None}
    return found


def _of_unfinished(store: Store, run_key: str, plan: RunPlan, keys: Iterable[str]) -> set[str]:
    """Return the folders that a run has made or starts from."""
    found = _of_rows(plan.history)
    if plan.parent is not None:
        found.add(plan.parent.prefix)
    for stage in Stage:
        result = read_result(store, run_key, stage)
        if result is not None:
            found |= set(result.outcome.outputs)
    found |= _of_catalogue(store, catalogues.of_run(store, run_key))
    mined = chosen_release(store, run_key)
    if mined is not None:
        found |= {mined.vectors, *_of_model(mined.model), *_of_catalogue(store, mined.catalogue)}
    for key in keys:
        if (found_in := SPEC.match(key)) and found_in["stage"] == Stage.infer:  # some of its vectors may be complete
            spec = read_record(store, key, JobSpec, "move the run's folder away")
            if isinstance(spec.inputs, InferInputs):
                found |= {spec.inputs.vectors, *filter(None, [spec.inputs.reuse])}
    return found


def _of_model(model: ModelRef) -> set[str]:
    """Return the folders of the weights that embed queries and items."""
    return {model.checkpoint.prefix, model.of_items.checkpoint.prefix}


def _of_rows(refs: Iterable[RowsRef]) -> set[str]:
    return {folder for rows in refs for folder in rows.folders}


def _of_catalogue(store: Store, catalogue: CatalogueRef | None) -> set[str]:
    """Return a catalogue's folder and its source rows, which a catalogue with other features needs."""
    if catalogue is None:
        return set()
    try:
        sources = read_fact(store, catalogue.prefix, "sources", list[str])
    except MissingFolder:
        return set()
    return {catalogue.prefix, *sources}
