"""The commands that messages suggest can be typed: each has all that its command requires."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flows.cli.app import all_commands
from tests.planes.source import ROOT, source_files

_SUGGESTED = re.compile(r"millrace ([a-z][a-z-]*)((?: [^\s`;:]+)*)")
_MENTIONED = 1  # option; a command with one alone is named, and one with more is meant to be typed


def test_a_suggested_command_has_all_that_it_requires() -> None:
    required = {
        name: {each.opts[0] for each in command.params if each.required and each.param_type_name == "option"}
        for name, command in all_commands().items()
    }
    lacking = [
        (place, command, sorted(absent))
        for place, text in _texts()
        for command, rest in _SUGGESTED.findall(text)
        if len(options := re.findall(r"--[a-z-]+", rest)) > _MENTIONED
        if (absent := required.get(command, set()) - set(options))
    ]
    assert not lacking


def _texts() -> Iterator[tuple[str, str]]:
    """Yield each text of the source with its place; a value in an f-string is X."""
    for path in source_files("flows", "tasks", "infra"):
        tree = ast.parse(path.read_text())
        formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        parts = {id(part) for node in formatted for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            yield f"{path.relative_to(ROOT)}:{node.lineno}", text
