"""Warmup, the compile report: seconds of every shape, memory, graphs, environment."""

from flows.presentation.model import Section, facts, table
from flows.presentation.stages import compiling
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import plural
from tasks.contracts.outcomes import WarmupOutcome


def section(of: StageFacts) -> Section:
    """Return the steps of the trial run, its memory and times, and the compiled graphs."""
    value: WarmupOutcome = of.outcome
    steps = [shape.step_seconds for shape in value.shapes]
    rows = [
        (
            f"{s.sequences} × {s.tokens}",
            f"{s.first_step_seconds:.3f}",
            f"{s.step_seconds:.3f}",
        )
        for s in value.shapes
    ]
    measured = (
        ("peak memory", f"{value.peak_memory_gib:.2f} GiB"),
        ("evaluating the holdout", f"{value.validation_seconds:.2f} s"),
        ("writing a checkpoint", f"{value.checkpoint_seconds:.2f} s"),
    )
    compiled = value.compiled
    return Section(
        f"{plural(len(value.shapes), 'shape')} tried, {value.peak_memory_gib:.2f} GiB at most",
        (f"A step takes {min(steps):.3g} to {max(steps):.3g} s on {value.device}.",) if steps else (),
        tables=(
            table("Sequences × tokens", ("shape", ">first step, s", ">step, s"), rows),
            facts(measured, f"The trial run on {value.device}"),
        ),
        parts=compiling.parts(value.graphs, value.environment),
        files=((plural(compiled.graphs, "compiled graph"), compiled.prefix),) if compiled else (),
    )
