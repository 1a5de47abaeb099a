"""An experiment by real workers: docs/experiments.md and the notebook, command by command, over a small shop."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT, named_commands
from tests.support.pages.shown import Page
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import Shop, open_shop

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

PAGE = ROOT / "docs" / "experiments.md"
NOTEBOOK = ROOT / "docs" / "compare.ipynb"
UNTOUCHED = ("releases/", "lineages/main/", "models/", "vectors/", "spans/")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, prefect: PrefectServer) -> Shop:
    """Two of three months were run and released."""
    shop = open_shop(tmp_path_factory.mktemp("experiments"), prefect.home, rows_per_span=400)
    for span in ("2026-01", "2026-02"):
        assert shop.run("--span", span).json["state"] == "Released"
    return shop


def lasting(shop: Shop) -> dict[str, int]:
    return {name: changed for name, changed in shop.files().items() if name.startswith(UNTOUCHED)}


def test_the_page_of_experiments_works_as_it_stands(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, listed, shown, as_page, as_json, adopted, *others = named_commands(PAGE.read_text())
    assert others == []
    before = lasting(shop)
    first = shop.millrace(*tried, "--json").json
    assert lasting(shop) == before, "the lineage and its releases are as they were"
    assert first["experiment"]["settings"] == [{"key": "train.learning_rate", "before": 0.002, "now": 0.001}]
    assert [stage["stage"] for stage in first["stages"] if stage["cached"]] == ["validate"]
    assert first["comparisons"][0]["pairs"][0]["measured_in"] == first["experiment"]["run_key"]
    assert first["report"]["verdicts"]
    again = shop.millrace(*tried, "--json").json
    assert (again["run_url"], again["experiment"]) == (None, first["experiment"])

    assert "slower" in shop.millrace(*listed).out
    said = shop.millrace(*shown).out
    assert "train.learning_rate" in said
    assert "recall@10" in said
    file = tmp_path / "slower.html"
    shop.millrace(*(str(file) if word == "slower.html" else word for word in as_page))
    assert "Queries" in Page(file.read_bytes()).text
    (pair,) = shop.millrace(*as_json).json["pairs"]
    assert pair["rows"] == pair["rows_b"]
    assert all(each["low"] <= each["difference"] <= each["high"] for each in pair["metrics"])
    assert all(each["query"] and each["item"] for each in pair["losses"])
    _run_notebook(shop, pair["rows"], monkeypatch)

    release = shop.millrace(*adopted[: adopted.index("--config")], *_config(first["adopt"]), "--json").json
    assert release["backfill"]["state"] == "Released"
    assert shop.millrace("status", "--json").json["release"]["run_key"] == first["experiment"]["run_key"]
    attempts = list(shop.workspace.glob(f"runs/{first['experiment']['run_key']}/train/attempt-*"))
    assert len(attempts) == 1, "it was not trained again"
    assert shop.run("--span", "2026-03").json["state"] == "Released"


def _config(adopt: str) -> list[str]:
    """The end of the command that `try` printed, from `--config`."""
    words = shlex.split(adopt)
    return words[words.index("--config") :]


def _run_notebook(shop: Shop, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the cells in their order, in one namespace."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("MILLRACE_WORKSPACE", str(shop.workspace))
    book = json.loads(NOTEBOOK.read_text())
    assert all(not cell.get("outputs") for cell in book["cells"])
    found: dict[str, object] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), found)
    worst, joined = found["worst"], found["rows"]
    assert 0 < len(joined) <= rows  # pyright: ignore[reportArgumentType]
    assert list(worst.columns) == ["query", "item", "rank_a", "rank_b"]  # pyright: ignore[reportAttributeAccessIssue]
