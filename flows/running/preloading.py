"""Loads the libraries of gates and figures, which takes seconds, while a run waits for its workers."""

import contextlib
import threading
from collections.abc import Iterator

from flows.presentation.figures import curves, svg
from tasks.gates.expectations import load_great_expectations
from tasks.running.stage_output import logger


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Load in a thread while the block runs, and wait for the thread: it must not continue while Python ends."""
    thread = threading.Thread(target=_load, name="preloading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _load() -> None:
    try:
        svg(curves("loss", "", [(0, {"loss": 0.0})]))
        load_great_expectations()
    except Exception as error:  # what needs them fails too, and says why
        logger().debug("could not be loaded beforehand: %s", error)
