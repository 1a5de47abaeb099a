"""Weights that one lineage trained, saved as others would, begin another: the command, real workers, real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import SPANS, Shop, open_shop

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

THEIRS = ("--set", "lineage=theirs")


@pytest.fixture(scope="module")
def shop(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return open_shop(tmp_path_factory.mktemp("shop"), prefect.home, rows_per_span=200)


def take(shop: Shop, file: Path, *arguments: str) -> Any:
    return shop.millrace(
        "import-checkpoint", str(file), "--config", str(shop.config_file), "--json", *THEIRS, *arguments
    )


def curve(shop: Shop, run_key: str) -> list[Any]:
    return shop.millrace("report", "--run", run_key, "--json").json["curve"]


def test_training_continues_from_the_imported_weights(shop: Shop, tmp_path: Path) -> None:
    ours = shop.run("--span", SPANS[0]).json["report"]["run_key"]
    (checkpoint,) = [line["checkpoint"] for line in shop.millrace("status", "--json").json["lineages"]]
    weights = load_file(shop.workspace / checkpoint / "model.safetensors")
    torch.save({"epoch": 1, "state_dict": {f"module.{n}": w for n, w in weights.items()}}, tmp_path / "last.ckpt")

    cut = tmp_path / "cut.ckpt"
    cut.write_bytes((tmp_path / "last.ckpt").read_bytes()[:5000])
    refused = take(shop, cut)
    assert (refused.code, refused.out) == (65, "")
    assert refused.err.splitlines()[-1].startswith(f"DATA: {cut} can't be read: it is cut off or damaged")
    other = take(shop, tmp_path / "last.ckpt", "--set", "model.embedding_width=16")
    assert other.code == 78
    assert "of another shape (" in other.err

    imported = take(shop, tmp_path / "last.ckpt").json
    assert imported["mapped"] == len(weights)
    assert (imported["ignored"], imported["new"]) == ([], [])
    trained = shop.run("--span", SPANS[0], *THEIRS).json["report"]
    assert trained["state"] == "Released"
    assert curve(shop, trained["run_key"])[0]["metrics"] == curve(shop, ours)[-1]["metrics"]
    assert curve(shop, trained["run_key"])[0]["step"] == 0
    plan = json.loads((shop.workspace / "runs" / trained["run_key"] / "plan.json").read_text())
    assert plan["parent"]["prefix"] == imported["checkpoint"]
    assert shop.half_written() == []
