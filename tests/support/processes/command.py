"""The command `millrace` called in this process, for all that starts no pipeline; and what a command said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flows.cli import main
from tests.docs.json_page import OUTPUTS


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


def as_documented(told: Told, *arguments: str) -> Told:
    """Hold what a command printed with --json against docs/json.md: no key is missing, none is unknown."""
    if "--json" in arguments and told.out:
        with_option = f"{arguments[0]} --dry-run" if "--dry-run" in arguments else arguments[0]
        record = OUTPUTS.get(with_option, OUTPUTS[arguments[0]])
        assert json.loads(record.model_validate_json(told.out).to_json()) == json.loads(told.out)
    return told


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> Told:
    """Call it with these arguments; its handler of signals, which is for a process of its own, is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: None)
        patch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return as_documented(Told(ended.value.code, told.out, told.err), *arguments)
