"""`python -m tests.planes.table`: the size of the source and of a run's path, in one table.

The path of a run is the import closure of its flow, its pages and its workers, imports within functions included.
"""

from __future__ import annotations

import ast
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tasks.contracts.stages import Stage
from tests.planes.source import MODULES, ROOT, TOPS, folder_edges, folder_of, imports

Node = TypeVar("Node", bound=ast.stmt)
LOADED = "import sys, flows.pipeline; print(*sys.modules)"


def rows() -> Iterator[tuple[str, str]]:
    """Measure and value, a line of the table each."""
    lines = {name: path.read_text().count("\n") for name, path in MODULES.items()}
    held = [count for name, count in lines.items() if MODULES[name].name != "__init__.py"]
    statements = [node for path in MODULES.values() for node in _nodes(path, ast.Import, ast.ImportFrom)]
    functions = [node for path in MODULES.values() for node in _nodes(path, ast.FunctionDef, ast.AsyncFunctionDef)]
    longest = max(functions, key=_length)
    edges = folder_edges()
    path = closure(
        ["flows.pipeline", *_pages(), "tasks.worker.__main__", *(f"tasks.worker.{stage}" for stage in Stage)]
    )
    loaded = [name for name in _loaded() if name in MODULES]
    total = sum(lines.values())
    yield "source lines", f"{total:,}"
    yield "files, and the median of lines without `__init__`", f"{len(MODULES)}, {statistics.median(held):.0f}"
    yield "lines of imports", f"{sum(map(_length, statements)) / total:.1%}"
    yield "folders with code, edges between them, floors", f"{len(_folders())}, {len(edges)}, {_floors(edges)}"
    yield "longest function", f"{_length(longest)} lines, {longest.name}"
    yield "a run's path: files, lines", f"{len(path)}, {sum(lines[name] for name in path):,}"
    yield "asserts in tests, on phrases of five words, patterns of 25 letters", "{:,}, {}, {}".format(*_phrases())
    yield "loaded by `import flows.pipeline`: files, lines", f"{len(loaded)}, {sum(lines[name] for name in loaded):,}"


def closure(start: Iterable[str]) -> set[str]:
    """The modules that these import, directly or not, and they themselves."""
    found: set[str] = set()
    left = list(start)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += (imports(MODULES[name]) & MODULES.keys()) - {*TOPS}
    return found


def _folders() -> set[str]:
    return {folder_of(name) for name, path in MODULES.items() if path.read_text().strip()}


def _phrases() -> tuple[int, int, int]:
    """Count the asserts, the asserts on a text of five words or more, and the `match=` of 25 letters or more."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    asserts = [node for node in nodes if isinstance(node, ast.Assert)]
    patterns = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "match"]
    phrases = [node for node in asserts if any(len(text.split()) >= 5 for text in _texts(node.test))]
    return len(asserts), len(phrases), sum(any(len(text) >= 25 for text in _texts(node)) for node in patterns)


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _floors(edges: Iterable[tuple[str, str]]) -> int:
    """Folders on the longest chain of which each imports from the next."""
    below: dict[str, set[str]] = {}
    for importer, imported in edges:
        below.setdefault(importer, set()).add(imported)

    @functools.cache
    def height(folder: str) -> int:
        return 1 + max(map(height, below.get(folder, ())), default=0)

    return max(map(height, below))


def _pages() -> list[str]:
    return [name for name in MODULES if name.startswith("flows.presentation.stages.")]


def _loaded() -> list[str]:
    ran = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.split()


def _nodes(path: Path, *kinds: type[Node]) -> Iterator[Node]:
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    for measure, value in rows():
        print(f"| {measure} | {value} |")
