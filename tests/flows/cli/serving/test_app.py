"""What an application prints for whoever started it when a page fails; test_server.py asks it over the network."""

from __future__ import annotations

from typing import Any, cast

import pytest

from flows.cli.serving.app import App
from flows.cli.serving.pages import Pages
from tasks.foundation.errors import StoreError


class Failing:
    """Pages of a workspace with a damaged file, in whose message are a text of the workspace and an address."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def page(self, path: str, query: str) -> Any:
        raise self._kind("\x1b[2Jred lamp at http://u:geheim@h/")

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("kind", [StoreError, ValueError])
def test_a_failure_steers_no_terminal_and_tells_no_password(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(cast(Pages, Failing(kind)), 1)
    body = bytes(app._answer("/", "").body)
    app.close()
    said = capsys.readouterr().err
    assert r"\x1b[2Jred lamp at http://u:***@h/" in said
    assert b"geheim" not in body
