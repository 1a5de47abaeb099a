"""Two months of a shop that are released, and a copy that a test may change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.two_months import TWO_WORKERS, Runs
from tests.support.processes.prefect_server import database_of
from tests.support.workspace.shop import SPANS, Shop, open_shop


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_tables: Path) -> Iterator[Runs]:
    """The first month by two workers, the second by one. Tests leave this workspace as it is."""
    folder = tmp_path_factory.mktemp("shop")
    shop = open_shop(folder, folder / "prefect", rows_per_span=400)
    with database_of(shop.home, prefect_tables):
        shop.millrace("up")
    try:
        yield Runs(shop, shop.run("--span", SPANS[0], *TWO_WORKERS).json, shop.run("--span", SPANS[1]).json)
    finally:
        shop.millrace("down")


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Shop:
    """The workspace after both runs, free to be changed; under the same server."""
    shutil.copytree(runs.shop.workspace, tmp_path / "workspace")
    return runs.shop._replace(workspace=tmp_path / "workspace")
