"""Plan a refresh: embed new and changed items with the released model, drop deleted ones; train nothing."""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from configs.load import config_hash
from configs.schema.compute import InferMachines
from configs.schema.config import BESIDE_THE_WORK, Config
from infra.store.base import Store
from tasks.contracts.kinds import REFRESH
from tasks.contracts.references import FeedRef, RowsRef, SpanRef
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.runs import releases
from tasks.runs.catalogues import known_items
from tasks.runs.plan import NothingToDo, read_plan, rows_of
from tasks.runs.snapshot import find_loss


class Refresh(NamedTuple):
    """The work, in the form of a run that trains nothing, and the release that it brings up to date."""

    plan: RunPlan
    release: Release


def plan_refresh(
    store: Store, config: Config, trained_on: str | None = None, waiting: Sequence[SpanRef] = ()
) -> Refresh:
    """Plan the refresh of the current release.

    The settings come from the run that trained the model; `config` decides machines, retries and gates.

    Args:
        trained_on: the lineage with the newest rows, such as a branch of a backfill with a rejected model; default:
            the active branch of the release's lineage.
        waiting: spans that are not trained yet, whose items are taken too.

    A release that lost a file is made again even if its items are unchanged.

    Raises:
        NothingToDo: the release is whole and its catalogue has all rows and item feeds, or there is no release yet, or
            a person took back a release with these items.
        StoreError: the release, its plan or its catalogue is not readable.
    """
    release = releases.current(store)
    if release is None:
        raise NothingToDo(f"nothing to do: {releases.no_current(store, 'to refresh')}")
    made_by = read_plan(store, release.run_key)
    known = known_items(store, release, trained_on)
    new = tuple(span for span in waiting if span not in [rows.span for rows in known.rows])
    repairs = None
    if known.all_released and not new:
        if find_loss(store, release) is None:
            raise NothingToDo(f"nothing to do: release {release.number} holds every item that the workspace knows")
        repairs = release.number
    settings = _settings(made_by.config, config)
    rows = rows_of(store, (*known.waiting, *new))
    if rows is not None and sum(rows) <= config.batch.refresh_cpu_items:
        settings = on_cpu_queue(settings)
    run_key = _run_key(settings, release, (*known.rows, *known.feeds, *new), repairs)
    if (made := releases.of_run(store, run_key)) is not None and releases.was_left(store, made.number):
        raise NothingToDo(
            f"nothing to do: release {made.number} has these items, and a person left it; millrace rollback --to "
            f"{made.number} makes it current, or the next new item"
        )
    plan = RunPlan(
        run_key=run_key,
        span=release.span,
        window=new,
        history=known.rows,
        parent=release.model.checkpoint,
        workspace=store.uri,
        config=settings,
    )
    return Refresh(plan, release)


def on_cpu_queue(config: Config) -> Config:
    """Return the settings with stage infer on one machine of `batch.cpu_queue`; unchanged if it runs on this machine.

    A few items don't pay for the start of an accelerator. Arithmetic in bf16 becomes `auto`: a processor may be slower
    at it than at fp32, and the vectors of both lie within `release.min_cosine`.
    """
    if compute_of(config, Stage.infer) != "batch":
        return config
    machines = InferMachines(
        queue=config.batch.cpu_queue,
        definition=config.batch.definition.replace("{stage}", "cpu-{stage}"),
        processes_per_node=1,
        instance=config.batch.cpu_instance,
        target=config.compiler.target,  # without an effect on a processor
    )
    precision = "auto" if config.infer.precision == "bf16" else config.infer.precision
    return config.model_copy(
        update={
            "accelerator": "cpu",
            "batch": config.batch.model_copy(update={"infer": machines}),
            "infer": config.infer.model_copy(update={"workers": 1, "precision": precision}),
        }
    )


def _settings(made_with: Config, now: Config) -> Config:
    places: dict[str, object] = {name: getattr(now, name) for name in (*BESIDE_THE_WORK, "compute", "accelerator")}
    infer = made_with.infer.model_copy(update={"workers": now.infer.workers, "compute": now.infer.compute})
    gates = made_with.release.model_copy(update={"gates": now.release.gates})
    return made_with.model_copy(update={**places, "infer": infer, "release": gates})


def _run_key(
    config: Config, release: Release, sources: Sequence[RowsRef | FeedRef | SpanRef], repairs: int | None
) -> str:
    """Return the key of the refresh. `repairs`: the release whose lost files it makes again; None: items are new."""
    work = {
        "pipeline": config.pipeline,
        "config": config_hash(config),
        "model": release.model.version,
        "sources": sorted(each.prefix for each in sources),
        **({"repairs": repairs} if repairs is not None else {}),
    }
    return f"{REFRESH}{hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]}"
