"""The source files and what each imports."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("flows", "tasks", "infra", "configs")


def source_files(*folders: str) -> list[Path]:
    """All Python files below these folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """`tasks.runs.plan` for tasks/runs/plan.py; a package is named like its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> set[str]:
    """The names of all modules that a file imports anywhere; `a.b` includes `a`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found | {name.partition(".")[0] for name in found}


MODULES = {module_name(path): path for path in source_files(*TOPS)}


def folder_of(module: str) -> str:
    """The folder of a module; a package is named like its folder."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


@functools.cache
def folder_edges() -> frozenset[tuple[str, str]]:
    """Pairs of folders: the first imports from the second."""
    return frozenset(
        (folder_of(module), folder_of(name))
        for module, path in MODULES.items()
        for name in imports(path)
        if name in MODULES and name not in TOPS and MODULES[name].read_text().strip()
        if folder_of(module) != folder_of(name)
    )
