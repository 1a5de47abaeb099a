"""Keys of the workspace are built and split in tasks/contracts alone; the stores also build the keys of locks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tasks.contracts.workspace import TABLE
from tests.planes.source import ROOT, source_files

ROOTS = {kind.pattern.partition("/")[0] for kind in TABLE}


def by_hand(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with `f"lineages/{name}..."`, and with `key.split("/")[1]`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and len(node.values) > 1 and isinstance(node.values[0], ast.Constant):
            root, _, rest = str(node.values[0].value).partition("/")
            if root in ROOTS and "/" in str(node.values[0].value) and " " not in rest:
                yield node.lineno
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            call = node.value
            of_key = isinstance(call.func, ast.Attribute) and call.func.attr == "split"
            if of_key and [ast.unparse(each) for each in call.args] == ["'/'"] and ast.unparse(node.slice) == "1":
                yield node.lineno


def test_no_key_is_built_or_taken_apart_by_hand() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files("flows", "tasks", "infra")
        if path.parent not in (ROOT / "tasks/contracts", ROOT / "infra/store")
        for line in by_hand(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize("text", ['f"lineages/{name}.run"', 'f"runs/{key}/plan.json"', 'rows.prefix.split("/")[1]'])
def test_one_by_hand_is_found(text: str) -> None:
    assert [*by_hand(ast.parse(text))] == [1]
