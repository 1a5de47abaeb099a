"""A real browser without a window, which reaches this machine's loopback and nothing else."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.browser.album import Album

NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "MILLRACE_BROWSER_REQUIRED"  # in the environment: without a browser the tests fail instead of being skipped
LOOPBACK = ("127.0.0.1", "localhost")
REBOUND = "evil.example"  # a name of elsewhere that leads to this machine, as one in a trick of DNS
ARGUMENTS = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
SECONDS = 90.0


@pytest.fixture(scope="module")  # its event loop must be over before other tests of this process use Prefect
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing = "none of " + ", ".join(NAMES) + " is installed; on Debian: apt-get install chromium"
        pytest.fail(missing) if os.environ.get(REQUIRED) else pytest.skip(missing)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def strangers(browser: Browser) -> Iterator[list[str]]:
    """Addresses outside of this machine that a page asked for; none got an answer, and there must be none."""
    asked: list[str] = []
    yield asked
    assert asked == [], "a page asked for something from elsewhere"


@pytest.fixture
def page(browser: Browser, strangers: list[str], album: Album, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window of 1280 by 1400 that waits patiently; the album shows what a failed test saw last."""
    failed_before = request.session.testsfailed
    with browser.new_context(viewport={"width": 1280, "height": 1400}, reduced_motion="reduce") as context:

        def answer(route: Route) -> None:
            address = urlsplit(route.request.url)
            if address.scheme == "file" or address.hostname in LOOPBACK:
                route.continue_()
            else:
                strangers.append(route.request.url)
                route.abort()

        context.route("**/*", answer)
        context.set_default_timeout(SECONDS * 1000)
        page = context.new_page()
        yield page
        if request.session.testsfailed > failed_before:
            album.take(context.pages[-1], "failed")
        context.unroute_all(behavior="ignoreErrors")


@pytest.fixture
def album(tmp_path: Path, request: pytest.FixtureRequest) -> Album:
    return Album(tmp_path, re.sub(r"[^\w-]+", "-", request.node.name).strip("-"))
