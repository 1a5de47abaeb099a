"""The commonest exports: from the file to the values in the span, by the command that `look` prints."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from tests.support.processes.command import call
from tests.support.workspace.inputs import GOOGLE

NOON = 1_790_000_000  # 2026-09-21, the time of the file


class Case(NamedTuple):
    """A file, the name that `look` gives it, and its rows as `columns` in the order of the span."""

    name: str
    file: str
    content: bytes
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


FEED = ("item_id", "item", "deleted")
CASES = {
    "shopify": Case(
        "Shopify",
        "products.csv",
        b"Handle,Title,Body (HTML),Published,Option1 Value,Variant SKU,Variant Price,Status\n"
        b'pan,"Iron pan, 20 cm",<p>Heavy</p>,true,20 cm,,29.00,active\npan,,,,24 cm,,35.00,\n'
        b"pot,Tea pot,,false,Default Title,,19.00,active\nmug,Mug,,true,Default Title,,9.00,archived\n",
        FEED,
        (("pan", "Iron pan, 20 cm", False), ("pot", "Tea pot", True), ("mug", "Mug", True)),
    ),
    "shopify, its newer columns": Case(
        "Shopify",
        "products.csv",
        b"Title,URL handle,Description,Published on online store,Status,SKU,Option1 name,Price\n"
        b"Iron pan,pan,Heavy,TRUE,Active,,Size,29.00\n,pan,,,,,,35.00\nMug,mug,,TRUE,Draft,,,9.00\n",
        FEED,
        (("pan", "Iron pan", False), ("mug", "Mug", True)),
    ),
    "woocommerce": Case(
        "WooCommerce",
        "wc-product-export.csv",
        b'\xef\xbb\xbfID,Type,SKU,Name,Published,"Is featured?","In stock?","Regular price"\n'
        b'44,variable,,"V-neck shirt",1,0,1,\n45,variation,,"V-neck shirt - Red",1,0,1,20\n'
        b'46,simple,,"Gift card",0,0,1,5\n47,simple,,"Draft, new",-1,0,1,5\n',
        FEED,
        (
            ("44", "V-neck shirt", False),
            ("45", "V-neck shirt - Red", False),
            ("46", "Gift card", True),
            ("47", "Draft, new", True),
        ),
    ),
    "merchant, tabs": Case(
        "Google Merchant",
        "feed.txt",
        b"id\ttitle\tdescription\tlink\timage link\tavailability\tprice\n"
        b'S1\tIron pan 9"\t"Heavy" pan\thttps://shop.example/1\t\tin_stock\t15.00 EUR\n'
        b"S2\tTea pot\tBlue\thttps://shop.example/2\t\tout_of_stock\t19.00 EUR\n",
        (*FEED, "availability"),
        (("S1", 'Iron pan 9"', False, "in_stock"), ("S2", "Tea pot", False, "out_of_stock")),
    ),
    "merchant, xml": Case(
        "Google Merchant",
        "feed.xml",
        f'<?xml version="1.0"?><rss version="2.0" xmlns:g="{GOOGLE}"><channel><title>Shop</title><item><g:id>S1</g:id>'
        "<title>Iron &amp; steel pan</title><g:price>15.00 EUR</g:price></item><item><g:id>S2</g:id>"
        "<title><![CDATA[Tea pot < mug]]></title></item></channel></rss>".encode(),
        FEED,
        (("S1", "Iron & steel pan", False), ("S2", "Tea pot < mug", False)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_printed_command_ingests_the_export(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path(case.file).write_bytes(case.content)
    os.utime(case.file, (NOON, NOON))
    options = ("--format", "csv") if case.file.endswith(".txt") else ()
    shown = call(capsys, "look", case.file, *options)
    assert shown.code == 0, shown.err
    assert case.name in shown.out.splitlines()[0]
    assert "check:" not in shown.out
    ingested = call(capsys, *shlex.split(shown.out.splitlines()[-1])[1:])
    assert ingested.code == 0, ingested.err
    rows = [
        row for path in sorted(Path("workspace").rglob("part-*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    assert [tuple(row[column] for column in case.columns) for row in rows] == [*case.rows]
    if "time" not in case.columns:
        assert {int(row["time"].timestamp()) for row in rows} == {NOON}
