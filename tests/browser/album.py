"""The screenshots of one test, numbered in their order."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Page

KEEP = "MILLRACE_SCREENSHOTS"  # in the environment: a folder to put them in as well


class Album:
    """Puts pictures into `folder`, and under the test's name into the folder that KEEP names."""

    def __init__(self, folder: Path, test: str) -> None:
        self._folder = folder / "screenshots"
        self._folder.mkdir()
        self._kept = Path(os.environ[KEEP]) / test if os.environ.get(KEEP) else None
        self._count = 0

    def add(self, page: Page, name: str) -> None:
        """Take a picture of what the page shows now, if pictures are kept: each costs half a second of a core."""
        if self._kept:
            self.take(page, name)

    def take(self, page: Page, name: str) -> None:
        """Take a picture in any case."""
        self._count += 1
        picture = self._folder / f"{self._count:02d}-{name}.png"
        page.screenshot(path=picture)
        if self._kept:
            self._kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, self._kept)
