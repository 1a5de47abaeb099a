"""Sides of a comparison: one span trained from one checkpoint on several machines or precisions, each with some seeds.

They change neither the compared lineage nor the list of runs. Planning them needs no Prefect; `train_side.py` trains.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from configs.load import leaves, with_overrides
from configs.schema.compute import ACCELERATORS
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.foundation.errors import ConfigError, DataError
from tasks.foundation.records import Record
from tasks.planning.next_run import plan_work
from tasks.runs.plan import run_key, with_settings

# Keys that a side may set: machines, precision and compiler, which leave lineage, checkpoint and batches the same.
OWN_KEYS = (
    "accelerator", "compute", "train.compute", "train.workers", "train.precision", "train.gradcache_chunks",
    "train.sequences", "train.sequence_tokens", "compiler.", "batch.", "health.", "cost.",
)  # fmt: skip
_NOT_WORK = ("cost.", "retry.", "health.")  # a side with another price is the same training


class SideSettings(NamedTuple):
    """A name, and the settings over the common configuration, as `key=value`."""

    name: str
    settings: tuple[str, ...] = ()


class SideRun(NamedTuple):
    """One training: a side with one seed."""

    side: str
    seed: int
    plan: RunPlan


class Trained(NamedTuple):
    """A finished training; its plan names a lineage that no other run uses."""

    run: SideRun
    device: str
    outcome: TrainOutcome

    @property
    def plan(self) -> RunPlan:
        return self.run.plan


class Side(Record):
    """The machine and the precision of a side."""

    accelerator: str
    device: str
    precision: str
    workers: int


class SidesReport(Record):
    """A comparison of sides: the work that all of them did."""

    version: Literal[1] = 1
    key: str = Field(description="key of the comparison")
    span: SpanRef
    lineage: str
    parent: CheckpointRef | None = Field(description="checkpoint that all sides started from; null: none")

    @property
    def start(self) -> str:
        """The checkpoint in words."""
        return f"{self.parent.prefix}, step {self.parent.step}" if self.parent else "nothing"


def no_holdout(span: SpanRef) -> DataError:
    """Return the error of sides that have no metric to compare."""
    return DataError(
        f"span {span.name}: no row is held out, so there is no metric to compare; compare on a larger span, or in a "
        "new lineage with a higher evaluate.holdout_share"
    )


def work_of(lineage: str, plans: Sequence[RunPlan]) -> dict[str, Any]:
    """Return the fields of a `SidesReport` of these trainings."""
    key = hashlib.sha256(" ".join(plan.run_key for plan in plans).encode()).hexdigest()[:16]
    return {"key": key, "span": plans[0].span, "lineage": lineage, "parent": plans[0].parent}


class SideRuns(NamedTuple):
    """`common` validates the rows for all; `runs` differ in settings of their side, seed and lineage.

    The first seed of all sides comes first, so a comparison that ends early has whole pairs.
    """

    lineage: str
    common: RunPlan
    runs: tuple[SideRun, ...]

    @property
    def lock(self) -> str:
        """Key of the lock that comparisons of the same work hold, because they share rows and maybe a side."""
        return lineage_lock(self.common.config.lineage)


def read_side(text: str) -> SideSettings:
    """Return a side written as `NAME[:key=value,...]`.

    The first word of the name is the accelerator if it names one, as in `cpu`, or in
    `cpu bf16:train.precision=bf16`.

    Raises:
        ConfigError: the side has no name, an unknown accelerator, or a key that changes more than machines, precision
            and compiler.
    """
    name, colon, rest = (part.strip() for part in text.partition(":"))
    settings = tuple(part.strip() for part in re.split(r",(?=\s*[\w.]+=)", rest) if part.strip())
    keys = [setting.partition("=")[0] for setting in settings]
    if not name or (colon and not settings):
        raise ConfigError(
            f"side {text!r}: expected NAME or NAME:key=value,..., as in cpu, or fast:train.precision=bf16"
        )
    for key, setting in zip(keys, settings, strict=True):
        if "=" not in setting or not any(key == own or (own.endswith(".") and key.startswith(own)) for own in OWN_KEYS):
            raise ConfigError(
                f"side {name}: {setting!r} is no key=value of {', '.join(OWN_KEYS)}; all sides share the other "
                "settings (--set); to compare those: millrace try"
            )
    first = name.split()[0]
    if first in ACCELERATORS and "accelerator" not in keys:
        return SideSettings(name, (f"accelerator={first}", *settings))
    if not settings:
        known = ", ".join(ACCELERATORS)
        raise ConfigError(f"unknown accelerator {name!r}; known are {known}; other sides need settings: NAME:key=value")
    return SideSettings(name, settings)


def plan_sides(store: Store, config: Config, span: str, sides: Sequence[str], seeds: int = 1) -> SideRuns:
    """Plan the trainings of all sides over `span`, which the lineage may have trained or not. Writes nothing.

    All have the starting point of the lineage's own run over the span. The first seed is `seed`, the next ones count
    up from it. Each training has a lineage with a hash of its work in the name, so no other work can use it. A side
    that occurs twice is trained twice.

    Args:
        sides: at least one, as in `read_side`.

    Raises:
        ConfigError: a side is malformed or has the name of another, a setting is out of bounds, or the span can't be
            trained next; names the spans that can.
        StoreError: the lineage's head or an earlier plan is not readable.
    """
    read = [read_side(side) for side in sides]
    work = plan_work(store, config, span)
    neutral = with_settings(work, accelerator=ACCELERATORS[0])
    name = f"{config.lineage}-sides-{neutral.run_key[:8]}"
    seen: list[str] = []
    planned: list[tuple[SideSettings, str, Config]] = []
    for side in read:
        own = _on_gpus(with_overrides(neutral.config, side.settings))
        digest = _digest(neutral.config, own)
        title = side.name + " again" * (side.name in {each.name for each, _, _ in planned})
        planned.append((side._replace(name=title), f"{name}-{digest}" + "-again" * seen.count(digest), own))
        seen.append(digest)
    if len({side.name for side, _, _ in planned}) < len(planned):
        raise ConfigError("three sides have one name; give each its own, as in --side 'b:accelerator=cpu'")
    return SideRuns(
        lineage=config.lineage,
        common=with_settings(neutral, lineage=name),
        runs=tuple(_runs(work, planned, seeds)),
    )


def _runs(work: RunPlan, planned: Sequence[tuple[SideSettings, str, Config]], seeds: int) -> Iterator[SideRun]:
    for place in range(seeds):
        for side, lineage, own in planned:
            seed = own.seed + place
            config = own.model_copy(update={"seed": seed, "lineage": lineage + f"-{seed}" * (place > 0)})
            key = run_key(config, work.window, work.parent)
            yield SideRun(side.name, seed, work.model_copy(update={"config": config, "run_key": key}))


def _digest(common: Config, own: Config) -> str:
    """Return eight digits: a hash of the settings of a side that decide its training."""
    before, now = leaves(common.tree()), leaves(own.tree())
    changed = {key: now.get(key) for key in sorted({*before, *now}) if before.get(key) != now.get(key)}
    work = {key: value for key, value in changed.items() if not key.startswith(_NOT_WORK)}
    return hashlib.sha256(json.dumps([own.accelerator, work]).encode()).hexdigest()[:8]


def _on_gpus(config: Config) -> Config:
    """Return the settings with one machine of `batch.cuda`, if the side trains there."""
    batch, other = config.batch, config.batch.cuda
    if config.accelerator != "cuda" or other is None or compute_of(config, Stage.train) != "batch":
        return config
    train = config.train
    if train.batch_rows % other.processes_per_node or (train.sequences or 0) % other.processes_per_node:
        raise ConfigError(
            f"train.batch_rows {train.batch_rows} and train.sequences {train.sequences} must be multiples of "
            f"batch.cuda.processes_per_node {other.processes_per_node}, the workers of the side on cuda"
        )
    machines = {
        "accelerator_queue": other.queue,
        "accelerator_definition": other.definition,
        "processes_per_node": other.processes_per_node,
        "accelerator_instance": other.instance,
    }
    return config.model_copy(
        update={
            "batch": batch.model_copy(update=machines),
            "health": config.health.model_copy(update={"machine": None}),
            "train": train.model_copy(update={"workers": other.processes_per_node}),
        }
    )
