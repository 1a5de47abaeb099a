"""The texts on record belong to tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.planes.source import ROOT
from tests.support.pages.golden import read

COUNTED = (
    "attempts", "files", "graphs", "hosts", "items", "jobs", "machines", "models", "queries", "records", "releases",
    "rows", "runs", "spans", "stages", "steps", "vectors", "workers",
)  # fmt: skip
FILES = sorted((ROOT / "tests").rglob("golden/test_*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_text_on_record_has_its_test(path) -> None:
    module = ast.parse((path.parent.parent / f"{path.stem}.py").read_text())
    tests = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    assert {re.split(r"\[| #", name)[0] for name in read(path)} <= tests


_ONE = re.compile(rf"(?<![\d.,%–-])\b1 (?:{'|'.join(COUNTED)})\b")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_text_on_record_counts_one_of_several(path) -> None:
    """As in `1 runs`: `plural` of tasks/foundation/nouns.py writes a number with its noun."""
    assert [found[0] for text in read(path).values() for found in _ONE.finditer(text)] == []
