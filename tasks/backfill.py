"""A backfill before it begins: which spans are done, which are trained again and why, what it takes, what follows.

Asking is free: nothing is written. Asking again for the same finds the same backfill, with less left to do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from configs.differences import differences
from configs.load import config_hash
from configs.schema import Config
from infra.store import Store
from tasks import branches, catalog, lineage, releases
from tasks.backfill_plan import Action, Asked, BackfillPlan, SpanPlan
from tasks.backfill_time import expect
from tasks.backfill_windows import windows
from tasks.branches import branch_of
from tasks.contracts import CheckpointRef, CheckpointState, SpanRef, Stage
from tasks.errors import ConfigError
from tasks.expected import past
from tasks.gates import refused
from tasks.plan import listed, read_plan, run_key
from tasks.results import Judgement, UnusableResult, read_judgement, result_key
from tasks.spans import first_day

ASKED: tuple[Asked, ...] = ("train", "evaluate", "infer", "release")

Chain = list[tuple[CheckpointRef, CheckpointState]]


class _Differing(NamedTuple):
    """Where the branch begins: keys of the runs left as they are, the checkpoint after them, and all whys."""

    kept: list[str]
    base: CheckpointRef | None
    whys: list[str]


def plan_backfill(
    store: Store,
    config: Config,
    first: str,
    last: str,
    stages: Sequence[str] = ASKED,
    reason: str = "",
    parallel: int = 2,
) -> BackfillPlan:
    """What there is to do for the spans from `first` to `last`, both included.

    Args:
        stages: out of train, evaluate, infer and release; validate, health and warmup come with train.
        reason: for people; kept with the backfill.
        parallel: how many spans are evaluated and inferred at once, for the expected time.

    Raises:
        ConfigError: the range or the stages can't be had; says what can, and the way out.
        StoreError: a checkpoint, plan or result is not readable; names the file.
    """
    asked = _asked(stages)
    on = branches.active(store, config.lineage)
    chain = lineage.completed(store, on)
    wanted = windows(catalog.list_spans(store), [state for _, state in chain], first, last, config.lineage)
    start = _differing(store, config, chain, wanted)
    anew = wanted[len(start.kept) :]
    work = _hash(
        config.lineage, on, start.base, anew or wanted, config_hash(config), *start.kept[: 0 if anew else None]
    )
    branch = f"{config.lineage}-backfill-{work[:8]}" if anew else None
    keys = [*start.kept, *_keys_on_branch(store, config, branch, start.base, anew)]
    spans = [
        _span(store, asked, window, key, why, branch if number >= len(start.kept) else None)
        for number, (window, key, why) in enumerate(zip(wanted, keys, start.whys, strict=True))
    ]
    spans[-1] = _with_release(store, asked, spans[-1], adopted=branch is None or on == branch)
    _check_trained(spans, asked)
    consumed = chain[-1][1].consumed if chain else ()
    expected = expect(store, config, past(store, consumed), spans, parallel)
    beyond = [rows.span for rows in consumed] if anew else []
    serving = releases.current(store)
    after = {span.name for window in anew for span in window}
    return BackfillPlan(
        id=_hash(work, first, last, sorted(asked)),
        lineage=config.lineage,
        on=on,
        branch=branch,
        base=start.base if anew else None,
        first=first,
        last=last,
        stages=tuple(stage for stage in ASKED if stage in asked),
        parallel=parallel,
        reason=reason,
        workspace=store.uri,
        config=config,
        spans=tuple(expected.spans),
        invalidated=tuple(_after(beyond, anew, after)) if anew else (),
        serving=serving.span if serving else None,
        expected_seconds=expected.seconds,
        expected_dollars=expected.dollars,
        attempts_seen=expected.attempts_seen,
    )


def _asked(stages: Sequence[str]) -> set[str]:
    if unknown := [stage for stage in stages if stage not in ASKED]:
        raise ConfigError(
            f"stage {unknown[0]!r} can't be asked for; a backfill has {', '.join(ASKED)} "
            "(validate, health and warmup come with train)"
        )
    if not stages:
        raise ConfigError(f"no stage is asked for; name some of {', '.join(ASKED)}")
    asked = set(stages)
    if "release" in asked and (lacking := {"evaluate", "infer"} - asked):
        raise ConfigError(
            f"release needs {' and '.join(sorted(lacking))} as well: a model is released through the gates, with its "
            "vectors; add what is lacking, or leave release out"
        )
    return asked


def _differing(store: Store, config: Config, chain: Chain, wanted: list[tuple[SpanRef, ...]]) -> _Differing:
    """Compare the windows with the runs of the lineage, one by one, until the first that has to be made anew."""
    position = _before(chain, wanted[0])
    kept: list[str] = []
    whys: list[str] = []
    for window in wanted:
        why = _why(store, config, chain, position, window)
        if why is not None:
            break
        kept.append(chain[position][1].run_key)
        whys.append(_together("as it was trained before", window))
        position += 1
    consumed = {rows.span.name: rows.span for _, state in chain[-1:] for rows in state.consumed}
    cause = wanted[len(kept)][-1].name if len(kept) < len(wanted) else ""
    for number, window in enumerate(wanted[len(kept) :]):
        why = _why(store, config, chain, position, window) if number == 0 else _corrected(consumed, window)
        follows = f"follows {cause}, which is trained again" if window[-1].name in consumed else "not trained yet"
        whys.append(_together(why or follows, window))
    return _Differing(kept, chain[position - 1][0] if position else None, whys)


def _before(chain: Chain, window: tuple[SpanRef, ...]) -> int:
    """How many checkpoints of the chain lie before the one that has this window's first span, or should have it."""
    names = {span.name for span in window}
    count = 0
    for _, state in chain:
        if any(rows.span.name in names for rows in state.consumed):
            break
        if state.consumed and _later(state.consumed[-1].span, window[0]):
            break
        count += 1
    return count


def _why(store: Store, config: Config, chain: Chain, position: int, window: tuple[SpanRef, ...]) -> str | None:
    """Why the window has to be trained, where the lineage's next run is not of this very work; None if it is."""
    if position >= len(chain):
        return "not trained yet"
    state = chain[position][1]
    if found := _corrected({rows.span.name: rows.span for rows in state.consumed}, window):
        return found
    before = len(chain[position - 1][1].consumed) if position else 0
    if tuple(rows.span for rows in state.consumed[before:]) != window:
        return "arrived after later spans were trained"
    plan = read_plan(store, state.run_key)
    asked = config.model_copy(update={"lineage": plan.config.lineage})
    if run_key(asked, plan.window, plan.parent) != plan.run_key:
        return f"settings changed: {listed(differences(plan.config, asked), most=3)}"
    return None


def _corrected(consumed: dict[str, SpanRef], window: tuple[SpanRef, ...]) -> str | None:
    changed = [span for span in window if span.name in consumed and consumed[span.name] != span]
    if not changed:
        return None
    return "corrected: " + listed([f"{s.name} v{consumed[s.name].version} -> v{s.version}" for s in changed])


def _together(why: str, window: tuple[SpanRef, ...]) -> str:
    with_it = [span.name for span in window[:-1]]
    return f"{why}; together with {listed(with_it)} in the lineage's first run" if with_it else why


def _keys_on_branch(
    store: Store, config: Config, branch: str | None, base: CheckpointRef | None, anew: list[tuple[SpanRef, ...]]
) -> list[str | None]:
    """The run keys on the branch, as far as they are known: one follows from the checkpoint before it."""
    if branch is None:
        return []
    own = lineage.completed(store, branch) if branch_of(store, branch) is not None else []
    made = {state.run_key: ref for ref, state in own}
    on_branch = config.model_copy(update={"lineage": branch})
    keys: list[str | None] = []
    parent, known = base, True
    for window in anew:
        key = run_key(on_branch, window, parent) if known else None
        keys.append(key)
        parent = made.get(key) if key is not None else None
        known = parent is not None
    return keys


def _span(
    store: Store, asked: set[str], window: tuple[SpanRef, ...], key: str | None, why: str, branch: str | None
) -> SpanPlan:
    def action(stage: Stage) -> Action:
        if stage.value not in asked:
            return "not asked"
        done = key is not None and store.exists(result_key(key, stage))
        return "done" if done and (stage is not Stage.evaluate or _judged(store, key) is not None) else "run"

    return SpanPlan(
        span=window[-1],
        window=window,
        branch=branch,
        run_key=key,
        trained=key is not None and store.exists(result_key(key, Stage.train)),
        train=action(Stage.train),
        evaluate=action(Stage.evaluate),
        infer=action(Stage.infer),
        release="not asked",
        why=why,
        expected_seconds=None,
        expected_dollars=None,
    )


def _with_release(store: Store, asked: set[str], span: SpanPlan, adopted: bool) -> SpanPlan:
    """The last span alone is released; where the gates refused it, its vectors are of no use either."""
    if "release" not in asked:
        return span
    judged = _judged(store, span.run_key) if span.evaluate == "done" else None
    if judged is not None and refused(judged.verdicts):
        infer: Action = "done" if span.infer == "done" else "refused"
        return span.model_copy(update={"infer": infer, "release": "refused"})
    released = any(release.run_key == span.run_key for release in releases.history(store))
    return span.model_copy(update={"release": "done" if released and adopted else "run"})


def _judged(store: Store, key: str | None) -> Judgement | None:
    try:
        return read_judgement(store, key) if key is not None else None
    except UnusableResult:  # it is judged again
        return None


def _check_trained(spans: Sequence[SpanPlan], asked: set[str]) -> None:
    untrained = [span for span in spans if not span.trained]
    if "train" in asked or not untrained:
        return
    raise ConfigError(
        f"{len(untrained)} of {len(spans)} spans are not trained as they are asked for: "
        f"{listed([f'{span.span.name} ({span.why})' for span in untrained], most=3)}; without train only what is "
        "trained can be evaluated, inferred or released: add train to --stages"
    )


def _after(consumed: Sequence[SpanRef], anew: list[tuple[SpanRef, ...]], within: set[str]) -> list[SpanRef]:
    """What the lineage trained after the first window that is made anew, and this backfill does not."""
    return [span for span in consumed if span.name not in within and _later(span, anew[0][0])]


def _later(one: SpanRef, other: SpanRef) -> bool:
    return (first_day(one.name), one.name) > (first_day(other.name), other.name)


def _hash(*parts: object) -> str:
    told = json.dumps(parts, sort_keys=True, default=lambda value: value.model_dump(mode="json"))
    return hashlib.sha256(told.encode()).hexdigest()[:16]
