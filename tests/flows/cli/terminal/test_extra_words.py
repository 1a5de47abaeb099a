"""Words that no parameter takes: the answer names the option that was meant, or how to write it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
        ("serve --host 0.0.0.0", "ssh -L 4280:127.0.0.1:4280"),
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
