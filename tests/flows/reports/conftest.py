from __future__ import annotations

from typing import NamedTuple

import pytest

from infra.store import DirectoryStore
from tasks.errors import FailureClass
from tests.support.past import write_past

# number of the week -> how its run ended
ENDS = {
    2: ("Rejected", None),
    4: ("Failed", FailureClass.HOST),
    5: ("Failed", FailureClass.CODE),
    6: ("Cancelled", FailureClass.CANCELLED),
    9: ("Running", None),
}


class Past(NamedTuple):
    """`keys` by number of the week."""

    store: DirectoryStore
    keys: tuple[str, ...]


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    """Ten weeks: not to be written to. The run of the first and of the eighth had to try training twice."""
    store = DirectoryStore(tmp_path_factory.mktemp("past"))
    return Past(store, tuple(write_past(store, 10, ENDS)))
