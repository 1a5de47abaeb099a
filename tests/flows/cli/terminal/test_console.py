"""Texts of items, ids and errors come from sellers and customers: none of them may steer the terminal of a reader."""

import pytest

from flows.cli import searching
from flows.cli.searching import SearchOutput
from flows.cli.terminal import console, ending
from flows.cli.terminal.progress_bars import Bars, display
from flows.presentation.model import Section, table
from flows.presentation.terminal import render
from tasks.contracts.search import Hit
from tasks.foundation.errors import DataError

EVIL = "\x1b]0;PWNED\x07\x1b[2J\u202elamp"
SHOWN = r"\x1b]0;PWNED\x07\x1b[2J\u202elamp"


def _said() -> None:
    console.say(EVIL)


def _noted() -> None:
    console.note(EVIL)


def _in_a_table() -> None:
    console.show_table(("item", EVIL), [[EVIL, "1"]])


def _in_a_section() -> None:
    console.show(render(Section(EVIL, lines=(EVIL,), tables=(table(EVIL, ("a",), [(EVIL,)]),), quote=EVIL), ""))


def _found() -> None:
    hit = Hit(score=0.5, item_id=EVIL, text=EVIL)
    searching.show_hits(SearchOutput(release=1, model_version="m", vectors=9, query="q", hits=(hit,), seconds=0.1))


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
    searching.show_hits(SearchOutput(release=1, model_version="m", vectors=9, query="q", hits=(hit,), seconds=0.1))
    assert "a 0 rows" in capsys.readouterr().out
