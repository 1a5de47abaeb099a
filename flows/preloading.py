"""Loads what a run needs late and what takes seconds to load, while its workers are waited for: gates and pictures."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from flows.pages.figures import draw
from tasks.expectations import load_great_expectations
from tasks.sinks import logger


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Load beside what happens inside the block. It ends no sooner: loading must not go on while Python ends."""
    thread = threading.Thread(target=_load, name="preloading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _load() -> None:
    try:
        draw({"loss": [(0, 0.0)]})
        load_great_expectations()
    except Exception as error:  # whoever needs it finds out, and says so in its own words
        logger().debug("could not be loaded beforehand: %s", error)
