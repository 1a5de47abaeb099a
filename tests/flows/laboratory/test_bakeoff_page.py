from __future__ import annotations

import datetime as dt
import io
import re

import pytest
from rich.console import Console

from configs.load import load_config
from configs.schema.operations import Price
from flows.laboratory.bakeoff_page import bakeoff_page, render_page
from flows.presentation import terminal
from tasks.contracts.comparison import CostPoint
from tasks.contracts.references import SpanRef
from tasks.laboratory.bakeoff_report import BakeoffPair, BakeoffReport, BakeoffSide, published_lines
from tasks.laboratory.equivalence import Equivalence, Finding
from tests.support.pages.golden import Golden

TRN1 = Price(
    instance="trn1.32xlarge",
    region="us-east-1",
    basis="on_demand",
    dollars_per_hour=21.50,
    date=dt.date(2026, 7, 20),
    source="a page of prices",
)


def side(name: str, price: Price | None, seconds: float) -> BakeoffSide:
    def dollars(of: float) -> float | None:
        return price.dollars(of) if price is not None else None

    points = tuple(
        CostPoint(step=step, seconds=seconds * share, dollars=dollars(seconds * share), value=0.4 + step / 100)
        for step, share in ((0, 0.2), (10, 0.6), (20, 1.0))
    )
    return BakeoffSide(
        name=name,
        accelerator="xla",
        device="neuron",
        precision="bf16",
        workers=32,
        instance="trn1.32xlarge",
        machines=1,
        price=price,
        unpriced="" if price is not None else "no price of trn1.32xlarge in mars (on demand)",
        trainings=(),
        iterations_per_second=12.5,
        pairs_per_second=1600.0,
        value=0.6,
        low=0.59,
        high=0.61,
        billable_seconds=seconds,
        starting_seconds=20.0,
        lost_seconds=0.0,
        points=points,
        target_seconds=seconds,
        target_dollars=dollars(seconds),
        dollars=dollars(seconds),
        dollars_without_start=dollars(seconds - 20),
    )


def report(price: Price | None = TRN1) -> BakeoffReport:
    pair = BakeoffPair(
        side="large batch bf16",
        first="small fp32",
        quality=Equivalence(
            metric="recall@10",
            first=0.6,
            other=0.6,
            difference=0.0,
            relative_difference=0.0,
            low=-0.003,
            high=0.003,
            finding=Finding.undecided,
            same_answers=False,
            rows=2000,
            rows_needed=61234,
        ),
        largest=None,
    )
    return BakeoffReport(
        key="k",
        span=SpanRef(name="2026-01", version=1),
        lineage="main",
        parent=None,
        metric="recall@10",
        first_step=0,
        last_step=20,
        seeds=(17, 18),
        target=0.59,
        target_is="the lineage's own run",
        margin=0.001,
        sides=(side("small fp32", TRN1, 3600.0), side("large batch bf16", price, 1800.0)),
        pairs=(pair,),
        published=published_lines(load_config().cost),
    )


def shown(of: BakeoffReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for part in terminal.page(bakeoff_page(of, "/w")):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_price_has_its_basis_region_date_and_source(golden: Golden):
    told = shown(report(), 160)
    golden(told.partition("Published by others")[0])


def test_an_unknown_price_is_no_zero():
    told = shown(report(None), 160)
    assert "$0.00" not in told
    assert "trn1.32xlarge in mars" in told
    assert re.search(r"^large batch bf16 +1,800\.0 +– +1,800\.0 +– +–", told, re.M)
    assert "fewest seconds" in told


def test_a_terminal_of_80_columns_shows_every_number():
    told = shown(report())
    assert max(map(len, told.splitlines())) <= 80
    for number in ("12.5", "1,600", "0.6000", "0.5900 to 0.6100", "$10.75", "$10.63", "61,234"):
        assert number in told


@pytest.mark.parametrize(("price", "figures"), [(TRN1, 3), (None, 2)])
def test_curves_over_dollars_need_all_prices(price: Price | None, figures: int):
    assert render_page(report(price), "/w").decode().count("data:image/svg+xml") == figures


def test_published_figures_are_marked_and_priced():
    told = shown(report(), 250)
    price = r"\$25\.25/h sagemaker, us-east-1, 2026-07-20"
    row = rf"^SageMaker article, p4d +p4d\.24xlarge +1 +6,553 +\$45\.96 +{price} +2023-03-15"
    assert re.search(row, told, re.M)
    assert "Others published these seconds" in told
