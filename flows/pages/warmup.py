"""The page of warmup, the compile report: seconds of every shape, graphs, memory, environment."""

from __future__ import annotations

from collections.abc import Mapping

from flows.pages.account import foot, head
from flows.pages.markdown import code, counted, table
from infra.store import Store
from tasks.contracts import GraphUse, RunPlan, Stage, WarmupOutcome


def page(store: Store, plan: RunPlan, value: WarmupOutcome) -> str:
    """Markdown. Raises StoreError if the ledger is not readable."""
    steps = [shape.step_seconds for shape in value.shapes]
    title = f"{counted(len(value.shapes), 'shape')} tried, {value.peak_memory_gib:.2f} GiB at most"
    sentence = f"A step takes {min(steps):.3g} to {max(steps):.3g} s on {value.device}." if steps else ""
    lines = head(plan, title, sentence)
    lines += table(
        (">query tokens", ">item tokens", ">first step, s", ">step, s"),
        [
            (str(s.query_tokens), str(s.item_tokens), f"{s.first_step_seconds:.3f}", f"{s.step_seconds:.3f}")
            for s in value.shapes
        ],
    )
    lines += table(
        ("", ">measured"),
        [
            ("peak memory", f"{value.peak_memory_gib:.2f} GiB"),
            ("evaluating the holdout", f"{value.validation_seconds:.2f} s"),
            ("writing a checkpoint", f"{value.checkpoint_seconds:.2f} s"),
        ],
    )
    places = {}
    if value.compiled is not None:
        places["compiled graphs"] = value.compiled.prefix
    lines += graphs_section(value.graphs)
    lines += environment_section(value.environment)
    return "\n".join([*lines, *foot(store, plan, Stage.warmup, places)])


def graphs_section(graphs: GraphUse | None) -> list[str]:
    """How the compile cache served; nothing on a device that compiles nothing."""
    if graphs is None:
        return []
    lines = ["## Graphs", "", f"{graphs.sentence[0].upper()}{graphs.sentence[1:]}.", ""]
    lines += table(
        (">compiled here", ">found", ">seconds compiling", ">seconds saved"),
        [(str(graphs.misses), str(graphs.hits), f"{graphs.compile_seconds:.1f}", f"{graphs.seconds_saved:.1f}")],
    )
    if graphs.new:
        lines += ["Graphs that warmup had not compiled:", ""]
        lines += table(
            ("graph", "met at", ">seconds"), [(code(new.name), new.where, f"{new.seconds:.1f}") for new in graphs.new]
        )
    return lines


def environment_section(environment: Mapping[str, str]) -> list[str]:
    """Compiler and runtime variables; nothing where none was set."""
    if not environment:
        return []
    rows = [(code(name), code(value)) for name, value in sorted(environment.items())]
    return ["## Environment", "", *table(("variable", "value"), rows)]
