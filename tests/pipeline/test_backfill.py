"""A backfill of 24 spans by real workers, three of which are ended in their work: the weights are those of a quiet one.

Takes some twenty minutes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.demo.search_log import write_shop
from tests.pipeline.complete import assert_complete
from tests.support.processes import forked
from tests.support.workspace.shop import SETTINGS, STAGES, CommandResult, Shop

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[2]
MONTHS = [f"{year}-{month:02d}" for year in (2024, 2025) for month in range(1, 13)]
RANGE = ("--from", MONTHS[0], "--to", MONTHS[-1])
# So that a training is still running when it is stopped.
MANY_STEPS = {"batch_rows": 8, "checkpoint_every": "4 steps", "log_every_steps": 1}
FAIL = {("2024-04", "evaluate"): "CODE", ("2024-07", "infer"): "OOM", ("2024-11", "train"): "DATA"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Two years of searches, ingested and nothing more."""
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop(folder / "workspace", folder / "shop.yaml", folder / "prefect")
    shop.config_file.write_text(yaml.safe_dump(SETTINGS | {"train": SETTINGS["train"] | MANY_STEPS}))
    source = folder / "shop.jsonl.gz"
    write_shop(source, spans=24, rows_per_span=120, seed=3, first=dt.date(2024, 1, 1))
    assert [span["name"] for span in shop.ingest(source).json["spans"]] == MONTHS
    try:
        yield shop
    finally:
        shop.millrace("down")


def backfill(shop: Shop, *arguments: str, fail: str = "") -> CommandResult:
    words = ("backfill", *RANGE, "--config", str(shop.config_file), *arguments)
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment |= {"PREFECT_HOME": str(shop.home), "MILLRACE_WORKSPACE": str(shop.workspace), "FAIL": fail}
    return forked.module("tests.support.fakes.failing", *words, environment=environment, seconds=3600)


def attempts(shop: Shop) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in shop.workspace.glob("runs/*/*/attempt-*/ledger.json")]


def left(plan: dict[str, Any]) -> Counter[tuple[str, str]]:
    """What a plan says is to be run: (span, stage)."""
    shown = ("train", "evaluate", "infer", "release")
    jobs = [(span["span"]["name"], stage) for span in plan["spans"] for stage in shown if span[stage] == "run"]
    return Counter([*jobs, *((name, early) for name, stage in jobs if stage == "train" for early in STAGES[:3])])


def released(shop: Shop) -> tuple[str, dict[str, str]]:
    """The run behind the current release, and a checksum of every file of its model and vectors."""
    current = shop.millrace("status", "--json").json["release"]
    files = [
        path
        for prefix in (current["model_prefix"], current["vectors_prefix"])
        for path in sorted((shop.workspace / prefix).rglob("*"))
        if path.is_file()
    ]
    sums = {str(path.relative_to(shop.workspace)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert any(name.endswith("model.safetensors") for name in sums)
    return current["run_key"], sums


def test_a_disturbed_backfill_releases_the_weights_of_an_undisturbed_one(shop: Shop, tmp_path: Path) -> None:
    quiet = shop._replace(workspace=tmp_path / "workspace")
    shutil.copytree(shop.workspace, quiet.workspace)
    plan = backfill(shop, "--dry-run", "--json").json
    assert left(plan).total() == 24 * 6 + 1

    failed = backfill(shop, fail=",".join(f"{stage}@{span}:{how}" for (span, stage), how in FAIL.items()))
    assert failed.code == 65, failed.err
    assert "3 of 24 spans failed" in failed.err.splitlines()[-1]
    rest = backfill(shop, "--dry-run", "--json").json
    assert rest["id"] == plan["id"]
    before = Counter((one["span"], one["stage"]) for one in attempts(shop))
    done = backfill(shop, "--json").json
    assert done["backfill"]["state"] == "Released"

    records = attempts(shop)
    now = Counter((one["span"], one["stage"]) for one in records)
    early = {("2024-11", stage) for stage in STAGES[:3]}  # done before its training failed
    assert now - before == Counter({job: 1 for job in left(rest) if job not in early})
    assert now == left(plan) + Counter(list(FAIL))
    assert {(one["span"], one["stage"]): one["failure"] for one in records if one["failure"]} == FAIL

    assert backfill(quiet, "--json").json["backfill"]["state"] == "Released"
    assert released(quiet) == released(shop)
    assert_complete(shop.workspace, [path.name for path in (shop.workspace / "spans").iterdir()])
    assert shop.half_written() == quiet.half_written() == []
