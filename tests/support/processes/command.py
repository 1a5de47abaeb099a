"""The command `millrace` called in this process, for tests that start no pipeline; and what a command printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flows.cli import main
from tests.docs.json_page import OUTPUTS


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
    """Check what a command printed with --json against docs/json.md: no key is missing, none is unknown."""
    if "--json" in arguments and result.out:
        words = [name for name in OUTPUTS if set(name.split()) <= set(arguments) and name.split()[0] == arguments[0]]
        record = OUTPUTS[max(words, key=lambda name: len(name.split()))]
        assert json.loads(record.model_validate_json(result.out).to_json()) == json.loads(result.out)
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
