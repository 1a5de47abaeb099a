"""Text files and the streams of child processes are UTF-8: Latin-1 never fails, it turns names to rubbish for good."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.planes.source import ROOT, TOPS, source_files


def by_the_locale(tree: ast.AST) -> Iterator[int]:
    """The lines of calls that read or write text in the encoding of the locale."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not {"encoding", None} & {each.arg for each in node.keywords}:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            words = {each.value for each in [*node.args, *(each.value for each in node.keywords if each.arg == "mode")]
                     if isinstance(each, ast.Constant)}  # fmt: skip
            text = bool(words & {"r", "w", "a", "x", "r+", "w+", "a+"})
            if (
                (name == "read_text" and not node.args)
                or (name == "write_text" and len(node.args) == 1)
                or (name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile") and text)
                or any(each.arg == "text" and getattr(each.value, "value", None) is True for each in node.keywords)
            ):
                yield node.lineno


def test_no_file_is_read_by_the_locale() -> None:
    found = {path: [*by_the_locale(ast.parse(path.read_bytes()))] for path in source_files(*TOPS)}
    lines = [f"{path.relative_to(ROOT)}:{line}" for path, numbers in found.items() for line in numbers]
    assert lines == [], 'say encoding="utf-8"'


def test_calls_without_an_encoding_are_seen() -> None:
    found = by_the_locale(ast.parse("p.read_text()\np.write_text(x)\np.open('w')\nrun(x, text=True)\nopen(p, 'rb')\n"))
    assert list(found) == [1, 2, 3, 4]
