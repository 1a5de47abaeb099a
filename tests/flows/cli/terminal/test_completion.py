"""Words that a shell proposes, as bash asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.command import call


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
        ("hold --", {"--off", "--reason", "--workspace", "--json", "--json-schema", "--help"}),
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
