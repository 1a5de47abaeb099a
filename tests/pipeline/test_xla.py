"""The whole thing on PyTorch/XLA to a release, and the next month on the processor without it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import SPANS, Shop, open_shop

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]  # its parts: tests/tasks/worker/devices, test_parity.py


class Runs(NamedTuple):
    shop: Shop
    on_xla: dict[str, Any]
    report: dict[str, Any]
    on_cpu: dict[str, Any]


@pytest.fixture(scope="module")
def runs(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    shop = open_shop(tmp_path_factory.mktemp("shop"), prefect.home, rows_per_span=400)
    on_xla = shop.run("--span", SPANS[0], "--set", "accelerator=xla").json
    report = shop.millrace("report", "--json").json
    return Runs(shop, on_xla, report, shop.run("--span", SPANS[1]).json)


def test_xla_comes_to_a_release_and_the_lineage_goes_on_without_it(runs: Runs) -> None:
    assert [run["state"] for run in (runs.on_xla, runs.on_cpu)] == ["Released", "Released"]
    assert runs.on_cpu["report"]["release"] == 2
    assert runs.on_cpu["report"]["champion"] is not None


def test_training_compiles_no_graph_after_warmup(runs: Runs) -> None:
    graphs = {graphs["stage"]: graphs for graphs in runs.report["graphs"]}
    assert (graphs["warmup"]["hits"], graphs["train"]["misses"]) == (0, 0)
    assert set(graphs["train"]["compiled"]) <= set(graphs["warmup"]["compiled"])
    assert graphs["train"]["hits"] > 0


def test_the_trial_run_leaves_only_the_compile_cache(runs: Runs) -> None:
    files = runs.shop.files()
    assert len([name for name in files if name.startswith("compile/") and name.endswith("/MANIFEST.json")]) == 1
    steps = {name.split("/")[2] for name in files if name.startswith("lineages/main/")}
    last = runs.on_xla["report"]["model_version"].split("-")[1]
    assert f"step-{last}" in steps
    assert len(steps) == 2, "one checkpoint of each run"
    warmup = [name for name in files if "/warmup/" in name]
    assert {name.rpartition("/")[2] for name in warmup} == {"spec.json", "ledger.json", "result.json"}
