"""The command `millrace` called in this process, for tests that start no pipeline; and what a command printed."""

from __future__ import annotations

import functools
import json
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pydantic import TypeAdapter

from flows.cli import main
from flows.cli.app import all_commands
from flows.cli.terminal.command import COMMANDS


class CommandResult(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., CommandResult]


def as_documented(result: CommandResult, *arguments: str) -> CommandResult:
    """Check what a command printed with --json against its records: no key is missing, none is unknown."""
    if "--json" in arguments and result.out:
        all_commands()
        titles = [name for name in COMMANDS if name.split() == list(arguments[: len(name.split())])]
        records = COMMANDS[max(titles, key=len)].prints
        record = TypeAdapter(functools.reduce(operator.or_, records)).validate_json(result.out)
        assert json.loads(record.to_json()) == json.loads(result.out)
    return result


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> CommandResult:
    """Call it with these arguments, without its handler of signals and its last exit, which need their own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: None)
        patch.setattr("flows.cli.leave_soon", lambda _: None)
        patch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return as_documented(CommandResult(ended.value.code, printed.out, printed.err), *arguments)
