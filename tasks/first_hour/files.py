"""The two files of a new pipeline as texts: commented settings, and the commands to type."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.load import BASE
from tasks.first_hour.settings import ProposedSetting, to_yaml

SETTINGS, COMMANDS = "millrace.yaml", "MILLRACE.md"
SCHEMA = BASE.with_name("millrace.schema.json")
_WIDTH = 118  # characters of a line with its comment


def settings_text(choices: Sequence[ProposedSetting], about: Sequence[str], gates: Sequence[str]) -> str:
    """Return the settings as YAML, each with its reason as a comment.

    Args:
        about: lines about the sources.
        gates: sentences about the gates, as comments.
    """
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        "# Made by millrace init for",
        *(f"#   {_one_line(line)}" for line in about),
        "# Commands in this folder read this file. All other settings are at their defaults: millrace config KEY.",
    ]
    tree: dict[str, Any] = {}
    for choice in choices:
        *above, last = choice.key.split(".")
        section = tree
        for part in above:
            section = section.setdefault(part, {})
        section[last] = choice
    for name, section in tree.items():
        lines += ["", *_lines({name: section}, "")]
        if name == "evaluate":
            lines += _comments(gates, "  ")
    if "evaluate" not in tree:
        lines += ["", *_comments(gates, "")]
    return "\n".join(lines) + "\n"


def commands_text(about: Sequence[str], steps: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return the commands as Markdown, in their order.

    Args:
        steps: a sentence, and the commands that it is about.
    """
    parts = ["# The commands of this pipeline", "", "Made by `millrace init`, with `millrace.yaml`, for", ""]
    parts += [*(f"- {_one_line(line)}" for line in about), ""]
    for sentence, commands in steps:
        parts += [sentence, "", "```", *commands, "```", ""]
    return "\n".join(parts)


def existing_files(folder: Path) -> list[Path]:
    """Return the files of a pipeline that a folder has already."""
    return [folder / name for name in (SETTINGS, COMMANDS) if (folder / name).exists()]


def _lines(tree: dict[str, Any], indent: str) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, ProposedSetting):
            yield from _setting(name, value, indent)
        else:
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")


def _setting(name: str, choice: ProposedSetting, indent: str) -> Iterator[str]:
    line, reason = f"{indent}{name}: {to_yaml(choice.value)}", _one_line(choice.reason)
    if len(line) + len(reason) + 4 <= _WIDTH:
        yield f"{line}  # {reason}" if reason else line
        return
    if reason:
        yield f"{indent}# {reason}"
    if len(line) <= _WIDTH or not isinstance(choice.value, dict):
        yield line
        return
    yield f"{indent}{name}:"
    for key, value in choice.value.items():
        yield from _setting(to_yaml(key), ProposedSetting(key, value, ""), f"{indent}  ")


def _comments(gates: Sequence[str], indent: str) -> list[str]:
    said = "Gates of base.yaml, once all of this log is trained (for one run: millrace run --dry-run):"
    return [f"{indent}# {line}" for line in (said, *(f"- {gate}" for gate in gates))]


def _one_line(text: str) -> str:
    """Return a text without line breaks, which would end a comment."""
    return " ".join(text.split())
