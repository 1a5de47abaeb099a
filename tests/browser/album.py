"""The screenshots of one test, numbered in their order."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playwright.sync_api import Page

KEEP = "MILLRACE_SCREENSHOTS"  # in the environment: a folder to put them in as well


class Album:
    """Lies in `folder`, and under the test's name in the folder that KEEP names."""

    def __init__(self, folder: Path, test: str) -> None:
        self._folder = folder / "screenshots"
        self._folder.mkdir()
        self._test = test
        self._count = 0

    def add(self, page: Page, name: str) -> None:
        """What the page shows now."""
        self._count += 1
        picture = self._folder / f"{self._count:02d}-{name}.png"
        page.screenshot(path=picture)
        if keep := os.environ.get(KEEP):
            kept = Path(keep) / self._test
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, kept)
