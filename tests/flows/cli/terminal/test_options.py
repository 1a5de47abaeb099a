"""Words of a command line: what is meant by one that no parameter takes, what a shell or a message proposes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.app import all_commands
from tests.planes.source import ROOT, source_files
from tests.support.processes.command import call


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run 2026-W45", "did you mean --span 2026-W45?"),
        ("rollback 1", "did you mean --to 1?"),
        ("publish 2", "did you mean --release 2?"),
        ("run --set train.epochs 3", "did you mean --set train.epochs=3?"),
        ("run train.epochs=3", "did you mean --set train.epochs=3?"),
        ("hold off", "did you mean --off?"),
        ("ingest --source a.csv b.csv --span week --time-column at --map query=q", "name their folder: ."),
        ("look a.csv b.csv c.csv", "These words belong to no option: b.csv c.csv; one file or one folder is read"),
        ("search red shoes", "put a text of several words in quotes"),
        ("refresh --dry-run", "millrace freshness shows"),
        ("rollback --release=2", "name the release with --to"),
        ("rollback --to latest", "Invalid value for '--to': write a whole number"),
        ("prune --keep 0", "write at least 1"),
        ("look a.csv --span months", "did you mean month?"),
        ("run --set publish.targets=[{kind: lancedb}]", "put the whole setting in quotes"),
        ("publish --release x --set a=http://me:secret@host", "write a whole number"),
        ("run --epochs 3", "--epochs is no option; did you mean --set train.epochs=VALUE?"),
        ("try --learning-rate=3e-5", "did you mean --set train.learning_rate=3e-5?"),
        ("look --source a.csv", "millrace look FILE"),
        ("ingest a.csv", "name rows with --source a.csv, or an item feed with --items a.csv"),
        ("hold because", "did you mean --reason 'because'?"),
        ("up now", "This word belongs to no option: now"),
        ("backfill list all", "This word belongs to no option: all"),
    ],
)
def test_a_word_too_many_is_answered_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        Path(f"{name}.csv").touch()
    result = call(capsys, *typed.split())
    assert result.code == 2
    assert meant in re.sub(r"[\s│]+", " ", result.err)


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


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("re", {"report", "refresh", "releases", "reap"}),
        ("run --sp", {"--span"}),
        ("run --workspace . --span 2026-", {"2026-W44", "2026-W45"}),
        ("skip ", {"2025-W52", "2026-W44", "2026-W45"}),
        ("try --set train.ep", {"train.epochs="}),
        ("config schedule.", {"schedule.cron", "schedule.timezone"}),
        ("backfill pau", {"pause"}),
        ("backfill --from", {"--from"}),
        ("hold --", {"--off", "--reason", "--workspace", "--json", "--markdown", "--json-schema", "--help"}),
    ],
)
def test_a_shell_completes_commands_options_spans_and_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, proposed: set[str]
) -> None:
    for span in ("2025-W52", "2026-W44", "2026-W45"):
        (tmp_path / "workspace" / "spans" / span).mkdir(parents=True)
    (tmp_path / "spans").symlink_to(tmp_path / "workspace" / "spans")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_MILLRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"millrace {typed}")
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ") + 1))
    assert set(call(capsys).out.split()) == proposed
