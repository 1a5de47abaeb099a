"""The command `millrace` called in this process, for all that starts no pipeline; and what a command said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flows.cli import main


class Told(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Told]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> Told:
    """Call it with these arguments; its handler of signals, which is for a process of its own, is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: None)
        patch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return Told(ended.value.code, told.out, told.err)
