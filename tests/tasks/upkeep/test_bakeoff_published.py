"""The published bake-off, at its own prices and at the listed ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from configs.load import load_config
from tasks.upkeep.bakeoff_published import PublishedLine, published_lines

COST = (Path(__file__).parents[3] / "docs" / "cost.md").read_text()


def lines(*settings: str) -> dict[str, PublishedLine]:
    return {line.training.name: line for line in published_lines(load_config(None, settings).cost)}


@pytest.mark.parametrize(("name", "dollars"), [("SageMaker article, trn1", 41.43), ("SageMaker article, p4d", 68.60)])
def test_the_articles_table_at_its_own_prices(tmp_path: Path, name: str, dollars: float):
    (then,) = re.findall(r"^```yaml\n(- basis: sagemaker.*?)^```", COST, re.M | re.S)
    (tmp_path / "then.yaml").write_text(then)
    line = lines(f"cost.prices=[{tmp_path}/then.yaml]")[name]
    assert line.dollars == pytest.approx(dollars, abs=0.005)
    assert f"| ${dollars:.2f} (" in COST
    assert line.price is not None
    assert (line.price.basis, str(line.price.date)) == ("sagemaker", "2023-03-15")


def test_the_articles_table_at_the_listed_prices():
    found = lines()
    trn1, p4d = (found[f"SageMaker article, {name}"] for name in ("trn1", "p4d"))
    assert (trn1.dollars, p4d.dollars) == (pytest.approx(41.43, abs=0.005), pytest.approx(45.96, abs=0.005))
    assert trn1.dollars is not None
    assert p4d.dollars is not None
    assert 1 - trn1.dollars / p4d.dollars == pytest.approx(0.10, abs=0.005)  # the article said 40 %


@pytest.mark.parametrize(
    ("name", "dollars"),
    [
        ("MLPerf 2.1 to its target, 8 A100", 7.72),
        ("MosaicML baseline, 8 A100", 9.78),
        ("MosaicML methods, 8 A100", 3.61),
        ("MLPerf 3.1 to its target, 8 H100", 4.92),
    ],
)
def test_mlperfs_minutes_at_the_listed_prices(name: str, dollars: float):
    assert lines()[name].dollars == pytest.approx(dollars, abs=0.005)


def test_a_price_that_no_list_has_is_not_known():
    assert all(line.price is None for line in lines("cost.region=mars").values())
