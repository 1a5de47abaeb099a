"""The graphs and the environment of warmup and train, on devices that compile."""

from collections.abc import Mapping

from flows.presentation.model import Cell, Section, table
from flows.presentation.wording import sentence
from tasks.contracts.usage import GraphUse


def parts(graphs: GraphUse | None, environment: Mapping[str, str]) -> tuple[Section, ...]:
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
