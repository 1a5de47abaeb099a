"""Output of commands: a customer's text steers no terminal, and a full or closed stream changes no exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import searching
from flows.cli.searching import SearchOutput
from flows.cli.terminal import console, ending
from flows.cli.terminal.progress_bars import Bars, display
from flows.presentation.model import Section, table
from tasks.contracts.search import Hit
from tasks.foundation.errors import DataError

EVIL = "\x1b]0;PWNED\x07\x1b[2J\u202elamp"
SHOWN = r"\x1b]0;PWNED\x07\x1b[2J\u202elamp"


def _said() -> None:
    console.say(EVIL)


def _noted() -> None:
    console.note(EVIL)


def _in_a_table() -> None:
    console.show([table("", ("item", EVIL), [[EVIL, "1"]])])


def _in_a_section() -> None:
    console.show([Section(EVIL, lines=(EVIL,), tables=(table(EVIL, ("a",), [(EVIL,)]),), quote=EVIL)])


def _found() -> None:
    hit = Hit(score=0.5, item_id=EVIL, text=EVIL)
    found = SearchOutput(release=1, model_version="m", vectors=9, query="q", hits=(hit,), seconds=0.1)
    console.show(searching.search_page(found))


def _failed() -> None:
    ending.explain(DataError(EVIL))


def _unexpected() -> None:
    ending.explain(ValueError(EVIL))


def _warned() -> None:
    with display() as listener:
        assert not isinstance(listener, Bars)
        listener.say(EVIL)


@pytest.mark.parametrize("printed", [_said, _noted, _in_a_table, _in_a_section, _found, _failed, _unexpected, _warned])
def test_what_is_printed_steers_no_terminal(printed, capsys: pytest.CaptureFixture[str]) -> None:
    printed()
    shown = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert SHOWN in shown


def test_an_id_over_several_lines_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    hit = Hit(score=0.5, item_id="a\n\n0 rows", text="lamp")
    found = SearchOutput(release=1, model_version="m", vectors=9, query="q", hits=(hit,), seconds=0.1)
    console.show(searching.search_page(found))
    assert "a 0 rows" in capsys.readouterr().out


MILLRACE = str(Path(sys.executable).with_name("millrace"))
FULL = "could not be written: No space left on device"


@pytest.mark.parametrize(
    ("words", "streams", "code", "said"),
    [
        ("--version", ">/dev/full", 0, f"standard output {FULL}"),
        ("--version", "2>/dev/full", 0, "millrace 0.1.0"),
        ("--version", ">&-", 0, ""),
        ("--version", ">&- 2>&-", 0, ""),
        ("releases --workspace nowhere", ">/dev/full", 78, "nowhere"),
        ("releases --workspace nowhere", "2>/dev/full", 78, f"standard error {FULL}"),
        ("releases --workspace nowhere", "2>&-", 78, ""),
        ("releases --workspace 'm\u00f6bel \u2212'", "2>&1", 78, "CONFIG"),
        ("--help", "| head -2", 0, "Usage"),
    ],
)
def test_what_can_not_be_printed_does_not_change_the_exit_code(
    tmp_path: Path, words: str, streams: str, code: int, said: str
) -> None:
    script = f"set -o pipefail; {MILLRACE} {words} {streams}"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        ["bash", "-c", script.encode()], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stdout + done.stderr
