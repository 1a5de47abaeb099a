"""The compiler's optimisation levels side by side: what compiling costs, what a step costs, whether the numbers move.

Each level is a warmup of its own, with its own compile cache; nothing is trained and nothing reaches the lineage.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import Field

from configs.schema import Config
from infra.store import Store
from tasks.alone import alone
from tasks.contracts import RunPlan, SpanRef, WarmupInputs, WarmupOutcome
from tasks.errors import ConfigError
from tasks.plan import plan_work, run_key
from tasks.records import Record
from tasks.sinks import logger
from tasks.stage import run_stage
from tasks.validate import validate

LEVELS = (1, 2, 3)


class LevelLine(Record):
    """One level. Differences are relative, to the first level asked for, and the largest over all steps or metrics."""

    level: int
    graphs: int
    compile_seconds: float = Field(description="of all graphs, in whichever run they were compiled")
    step_seconds: float = Field(description="the fastest step of each shape, averaged over the shapes of the ladder")
    loss_difference: float
    metric_difference: float


class LevelReport(Record):
    """`millrace warmup --compare-optlevel`."""

    span: SpanRef
    accelerator: str
    device: str
    levels: tuple[LevelLine, ...]


def compare_levels(store: Store, config: Config, span: str, levels: Sequence[int]) -> LevelReport:
    """Warm up once for each level, from the lineage's checkpoint, on the same rows; what was done is not done again.

    Raises:
        ConfigError: a level is unknown, or the accelerator compiles nothing.
        StageError: of the class that stopped a stage.
    """
    if unknown := [level for level in levels if level not in LEVELS] or not levels:
        raise ConfigError(f"--compare-optlevel: {unknown} is no level; give some of {', '.join(map(str, LEVELS))}")
    if config.accelerator != "xla":
        raise ConfigError(
            f"accelerator: {config.accelerator} compiles nothing ahead of time; compare with --set accelerator=xla"
        )
    work = plan_work(store, config, span)
    with alone(store, f"lineages/{config.lineage}.run", logger().warning):
        rows = validate.fn(work).rows
        outcomes = []
        for level in levels:
            plan = _at_level(work, level)
            inputs = WarmupInputs(rows=rows, parent=plan.parent)
            outcomes.append(run_stage(plan, inputs, WarmupOutcome, workers=config.train.workers))
    lines = tuple(_line(level, outcome, outcomes[0]) for level, outcome in zip(levels, outcomes, strict=True))
    return LevelReport(span=work.span, accelerator=config.accelerator, device=outcomes[0].device, levels=lines)


def _at_level(work: RunPlan, level: int) -> RunPlan:
    compiler = work.config.compiler.model_copy(update={"optlevel": level})
    config = work.config.model_copy(update={"compiler": compiler})
    return work.model_copy(update={"config": config, "run_key": run_key(config, work.window, work.parent)})


def _line(level: int, outcome: WarmupOutcome, first: WarmupOutcome) -> LevelLine:
    assert outcome.compiled is not None, "the accelerator compiles"
    metrics = [(outcome.trial_metrics[name], value) for name, value in first.trial_metrics.items()]
    return LevelLine(
        level=level,
        graphs=outcome.compiled.graphs,
        compile_seconds=outcome.compiled.seconds,
        step_seconds=round(statistics.mean(shape.step_seconds for shape in outcome.shapes), 4),
        loss_difference=_largest(list(zip(outcome.trial_losses, first.trial_losses, strict=True))),
        metric_difference=_largest(metrics),
    )


def _largest(pairs: list[tuple[float, float]]) -> float:
    return max((abs(a - b) / max(abs(a), abs(b)) for a, b in pairs if a != b), default=0.0)
