"""Warmup, the compile report: seconds of every shape, memory, graphs, environment.

Train shows its graphs and its environment alike.
"""

from collections.abc import Mapping

from flows.presentation.model import Cell, Section, facts, table
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import sentence
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.usage import GraphUse
from tasks.foundation.nouns import plural


def compiled_parts(graphs: GraphUse | None, environment: Mapping[str, str]) -> tuple[Section, ...]:
    """Return the use of the compile cache, and the variables that were set; empty without both."""
    return (*_graphs(graphs), *_environment(environment))


def _graphs(graphs: GraphUse | None) -> tuple[Section, ...]:
    if graphs is None:
        return ()
    counts = (str(graphs.misses), str(graphs.hits), f"{graphs.compile_seconds:.1f}", f"{graphs.seconds_saved:.1f}")
    tables = [table("", (">compiled here", ">found", ">seconds compiling", ">seconds saved"), [counts])]
    if graphs.new:
        rows = [(Cell(new.name, code=True), new.where, f"{new.seconds:.1f}") for new in graphs.new]
        tables.append(table("Graphs that warmup had not compiled", ("graph", "met at", ">seconds"), rows))
    return (Section("Graphs", (sentence(graphs.sentence),), tables=tuple(tables)),)


def _environment(environment: Mapping[str, str]) -> tuple[Section, ...]:
    if not environment:
        return ()
    rows = [(Cell(name, code=True), Cell(value, code=True)) for name, value in sorted(environment.items())]
    return (Section("Environment", tables=(table("", ("variable", "~value"), rows),)),)


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
        parts=compiled_parts(value.graphs, value.environment),
        files=((plural(compiled.graphs, "compiled graph"), compiled.prefix),) if compiled else (),
    )
