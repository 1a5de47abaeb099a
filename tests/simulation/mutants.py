"""Faults of the protocol to plant, each a change of one line: the simulation must find every one of them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch


class Mutant(NamedTuple):
    """A function of the code, and one piece of its source in place of another."""

    function: str  # module and name, as in tasks.runs.adding_releases:settle
    before: str
    after: str
    too: tuple[str, str] = ("", "")  # another piece, and what stands in its place


def _written(pointer: str) -> str:
    return f'store.write("releases/CURRENT", {pointer}.to_json())'


ADD, SETTLE = "tasks.runs.adding_releases:add", "tasks.runs.adding_releases:settle"
NUMBERED, FOLLOWS = "tasks.runs.adding_releases:_numbered", "tasks.runs.adding_releases:_follows"
AGAIN, UNMARK = "tasks.runs.adding_releases:_decide_again", "tasks.runs.adding_releases:_unmark"
ROLLBACK, GO, ANNOUNCED = "tasks.runs.rollback:rollback", "tasks.runs.rollback:_go", "tasks.runs.rollback:_announced"
MOVED, HOLD = "tasks.runs.holds:_moved", "tasks.runs.holds:hold"
PRUNE, MARK = "tasks.prune.prune:prune", "tasks.prune.prune:_mark"
PLACED = "tasks.data.new_versions:_placed"
PUBLISHED = "tasks.worker.publish:_publish"
KEPT = "tasks.prune.reach:_kept_releases"
REACH = "tasks.prune.reach:find_reach"
TAKE, REPLACE, LEFT = (
    "infra.store.lease:HeldLease.take",
    "infra.store.lease:HeldLease._replace",
    "infra.store.lease:seconds_left",
)
PUT_IF, SWAP = "infra.store.s3_store:S3Store._put_if", "infra.store.s3_store:S3Store.swap"
CREATE = "infra.store.s3_store:S3Store.create"

_ANNOUNCE = 'swap_pointer(store, pointer.model_copy(update={"undecided": undecided}), expected=raw)'
_NUMBER = "store.swap(NUMBER.key(run=made.run_key), Numbered(number=number).to_json(), expected=wanted)"
_SEEN = "seen = {key: store.tags(key) for key in (kind.key(number=number) for kind in (PRUNED_RELEASE, CLOSED_NUMBER))}"
_LOCKS, _LOOKS = "held.enter_context(hold_lineages(store, known, warn))", "reach = find_reach(store, policy)\n        "

MUTANTS: Mapping[str, Mutant] = {
    # Making a release
    "the number is not announced": Mutant(NUMBERED, _ANNOUNCE, "pass"),
    "the announcement is a write": Mutant(
        NUMBERED, _ANNOUNCE, _written('pointer.model_copy(update={"undecided": undecided})')
    ),
    "the announcement forgets the others": Mutant(NUMBERED, "(*pointer.undecided, number)", "(number,)"),
    "the announcement ends a hold": Mutant(
        NUMBERED, 'update={"undecided": undecided}', 'update={"undecided": undecided, "hold": None}'
    ),
    "the number of a run is a write": Mutant(
        NUMBERED, _NUMBER, "store.write(NUMBER.key(run=made.run_key), Numbered(number=number).to_json())"
    ),
    "the number of a run is not recorded": Mutant(NUMBERED, _NUMBER, "pass"),
    "a release is a write": Mutant(NUMBERED, "store.create(RELEASE", "store.write(RELEASE"),
    "a run does not look for its release again": Mutant(NUMBERED, "if mine is not None:", "if False:"),
    "a run looks for its release before the free number": Mutant(
        NUMBERED,
        "        raw, pointer = read_pointer(store)",
        "        early = of_run_with_number(store, made.run_key)\n        raw, pointer = read_pointer(store)",
        ("wanted, mine = of_run_with_number(store, made.run_key)", "wanted, mine = early"),
    ),
    "the lock is confirmed before the mark is read": Mutant(
        UNMARK,
        f"{_SEEN}\n    confirm()",
        f"confirm()\n    {_SEEN}",
    ),
    "a mark is removed without a check": Mutant(UNMARK, "    confirm()\n", ""),
    "a refresh that was passed over is not decided again": Mutant(
        ADD, "_decide_again(store, release, refreshed)", "pass"
    ),
    "add does not decide": Mutant(ADD, "    settle(store)\n", "    pass\n"),
    "a pointer comes back with the same bytes": Mutant(
        "tasks.runs.releases:swap_pointer", '{"write": uuid.uuid4().hex}', '{"write": ""}'
    ),
    # Deciding
    "a decision is a write": Mutant(SETTLE, "swap_pointer(store, decided, expected=raw)", _written("decided")),
    "a decision ignores a hold": Mutant(SETTLE, "pointer is not None and pointer.hold is not None", "False"),
    "a decision forgets numbers in the making": Mutant(
        SETTLE, "tuple(number for number in undecided if number not in waiting) if pointer is not None else ()", "()"
    ),
    "a decision forgets who was passed over": Mutant(SETTLE, "passed_over.add(number)", "pass"),
    "a pruned release is decided": Mutant(
        "tasks.runs.adding_releases:_waiting",
        "is_made(store, number) and not is_pruned(store, number)",
        "is_made(store, number)",
    ),
    "a refresh takes the place of any release": Mutant(FOLLOWS, "made.refreshed == serving.number", "True"),
    "an older span takes the place of a newer one": Mutant(
        FOLLOWS, "first_day(made.span.name) >= first_day(serving.span.name)", "True"
    ),
    "a release of the same span does not follow": Mutant(
        FOLLOWS,
        "first_day(made.span.name) >= first_day(serving.span.name)",
        "first_day(made.span.name) > first_day(serving.span.name) and False",
    ),
    "a release that served is decided again": Mutant(
        AGAIN, "number not in {*pointer.passed_over, *pointer.undecided}", "False"
    ),
    "deciding again forgets the others": Mutant(AGAIN, "{*pointer.undecided, number}", "{number}"),
    # People
    "a rollback is a write": Mutant(
        GO,
        "swap_pointer(store, pointer.model_copy(update=moved), expected=raw)",
        _written("pointer.model_copy(update=moved)"),
    ),
    "a rollback does not announce its target": Mutant(
        GO, "raw = _announced(store, pointer, raw, release.number)", "pass"
    ),
    "a rollback does not look for a prune": Mutant(ANNOUNCED, "if is_pruned(store, target):", "if False:"),
    "a rollback forgets undecided releases": Mutant(
        GO, "getattr(pointer, name) if number != release.number", "() if number != release.number"
    ),
    "a hold is a write": Mutant(
        MOVED,
        'swap_pointer(store, pointer.model_copy(update={"hold": hold}), expected=raw)',
        _written('pointer.model_copy(update={"hold": hold})'),
    ),
    "a second hold replaces the first": Mutant(HOLD, "if pointer.hold is not None:", "if False:"),
    # Prune
    "prune takes no lock": Mutant(PRUNE, _LOCKS, "pass"),
    "prune looks before it takes the locks": Mutant(
        PRUNE, _LOCKS, f"reach = find_reach(store, policy)\n        {_LOCKS}", (f"{_LOOKS}if more", "if more")
    ),
    "prune marks nothing": Mutant(MARK, "    releases.mark_pruned(store, plan.releases)\n", ""),
    "prune does not look for a rollback": Mutant(
        MARK, "{pointer.release, pointer.going_to} & set(plan.releases)", "set()"
    ),
    "prune does not look for an announced rollback": Mutant(
        MARK, "{pointer.release, pointer.going_to}", "{pointer.release}"
    ),
    "prune does not close the free number": Mutant(MARK, "if plan.folders and following > 1:", "if False:"),
    "prune keeps no target of a rollback": Mutant(KEPT, "pointer.going_to, *", "*"),
    "prune forgets unfinished runs": Mutant(
        REACH, "folders |= _of_unfinished(store, run_key, plan, keys[run_key])", "pass"
    ),
    "prune forgets a run whose release was late": Mutant(REACH, " if release.number not in snapshot.late", ""),
    "a refresh takes a name that a prune had marked": Mutant(
        "tasks.runs.catalogues:_unpruned",
        "if not pruned and not store.exists(PRUNED_RUN.key(run=run_key)):",
        "if True:",
    ),
    "vectors are made in a folder that a prune had marked": Mutant(
        "infra.store.manifest:next_folder", "store.exists(mark_of(name)) or ", ""
    ),
    "prune does not confirm its locks": Mutant(PRUNE, "lambda _: confirm_lineages()", "lambda _: None"),
    # Ingest
    "an ingest does not confirm its lock": Mutant(
        "tasks.data.ingest:_commit", "lambda _: lock.confirm()", "lambda _: None"
    ),
    "an ingest removes what another one left": Mutant(
        PLACED, "store.tags(prefix), list[FileEntry]()", "store.delete(prefix) or {}, list[FileEntry]()"
    ),
    "an ingest takes the place of what another one left": Mutant(
        PLACED, "if key in before and not", "if False and not"
    ),
    "versions of a feed are not announced": Mutant(
        "tasks.data.span_versions:_swap_feeds", "_highest(known.announced, announced)", "known.announced"
    ),
    # Targets
    "a publication does not look for a rollback again": Mutant(
        PUBLISHED, "            if _overtaken(job.store, inputs):", "            if False:"
    ),
    "a publication drops what a later one serves": Mutant(
        "tasks.worker.publish:_drop", "if target.serving() != served:", "if False:"
    ),
    # Locks
    "a held lease is taken": Mutant(TAKE, "if _is_held(self._store, self._key, raw, there, self._clock):", "if False:"),
    "a new holder has the same term": Mutant(TAKE, '"term": there.term + 1', '"term": there.term'),
    "a lease is taken by a write": Mutant(
        TAKE,
        "self._store.swap(self._key, lease.to_json(), expected=raw)",
        "self._store.write(self._key, lease.to_json())",
    ),
    "a lost lease is taken back": Mutant(REPLACE, "if there is None or there.owner != self._lease.owner:", "if False:"),
    "a lease ends at once": Mutant(LEFT, "return lease.until - clock()", "return lease.until - clock() - 60"),
    "a lease of another machine is read by this clock": Mutant(
        LEFT, "if lease.boot and lease.boot == boot():", "if True:"
    ),
    # The bucket
    "a lost reply counts as a conflict": Mutant(
        PUT_IF, "return found is not None and (found[0], found[2]) == (data, write_id)", "return False"
    ),
    "a conflict counts as a success": Mutant(
        PUT_IF, "return found is not None and (found[0], found[2]) == (data, write_id)", "return found is not None"
    ),
    "a swap compares the content alone": Mutant(
        SWAP, 'condition = {"IfNoneMatch": "*"} if content is None else {"IfMatch": etag}', "condition = {}"
    ),
    "a creation has no condition": Mutant(CREATE, 'IfNoneMatch="*"', "**{}"),
}


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a mutant inside the block; None plants none."""
    if name is None:
        yield
        return
    mutant = MUTANTS[name]
    module_name, _, path = mutant.function.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *classes, function = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    there = getattr(owner, function)
    changed = _changed(module, inspect.unwrap(there), mutant, name)
    owners = [owner, *(each for each in list(sys.modules.values()) if vars(each).get(function) is there)]
    with contextlib.ExitStack() as held:
        for each in owners:  # it was imported by name there
            held.enter_context(patch.object(each, function, changed))
        yield


def _changed(module: ModuleType, function: Any, mutant: Mutant, name: str) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutant.before) != 1:
        raise AssertionError(f"{name}: {mutant.function} has {source.count(mutant.before)} times {mutant.before!r}")
    space: dict[str, Any] = {}
    source = source.replace(mutant.before, mutant.after, 1)
    if mutant.too[0]:
        before, _, rest = source.rpartition(mutant.too[0])
        source = before + mutant.too[1] + rest
    code = compile(source, f"<{name}>", "exec")
    names = {**vars(module)}  # of its module, as they are now: others may be changed in tests
    exec(code, names, space)
    return space[function.__name__]
