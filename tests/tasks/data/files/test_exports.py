"""The commonest exports: from the file to the values in the span, by the command that `look` prints."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
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
    beside: Mapping[str, bytes] = {}  # further files of the folder


FEED = ("item_id", "item", "deleted")
CASES = {
    "shopify": Case(
        "a product export of Shopify",
        "products.csv",
        b"Handle,Title,Body (HTML),Published,Option1 Value,Variant SKU,Variant Price,Status\n"
        b'pan,"Iron pan, 20 cm",<p>Heavy</p>,true,20 cm,,29.00,active\npan,,,,24 cm,,35.00,\n'
        b"pot,Tea pot,,false,Default Title,,19.00,active\nmug,Mug,,true,Default Title,,9.00,archived\n",
        FEED,
        (("pan", "Iron pan, 20 cm", False), ("pot", "Tea pot", True), ("mug", "Mug", True)),
    ),
    "shopify, its newer columns": Case(
        "a product export of Shopify",
        "products.csv",
        b"Title,URL handle,Description,Published on online store,Status,SKU,Option1 name,Price\n"
        b"Iron pan,pan,Heavy,TRUE,Active,,Size,29.00\n,pan,,,,,,35.00\nMug,mug,,TRUE,Draft,,,9.00\n",
        FEED,
        (("pan", "Iron pan", False), ("mug", "Mug", True)),
    ),
    "woocommerce": Case(
        "a product export of WooCommerce",
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
        "a product feed of Google Merchant",
        "feed.txt",
        b"id\ttitle\tdescription\tlink\timage link\tavailability\tprice\n"
        b'S1\tIron pan 9"\t"Heavy" pan\thttps://shop.example/1\t\tin_stock\t15.00 EUR\n'
        b"S2\tTea pot\tBlue\thttps://shop.example/2\t\tout_of_stock\t19.00 EUR\n",
        (*FEED, "availability"),
        (("S1", 'Iron pan 9"', False, "in_stock"), ("S2", "Tea pot", False, "out_of_stock")),
    ),
    "merchant, xml": Case(
        "a product feed of Google Merchant",
        "feed.xml",
        f'<?xml version="1.0"?><rss version="2.0" xmlns:g="{GOOGLE}"><channel><title>Shop</title><item><g:id>S1</g:id>'
        "<title>Iron &amp; steel pan</title><g:price>15.00 EUR</g:price></item><item><g:id>S2</g:id>"
        "<title><![CDATA[Tea pot < mug]]></title></item></channel></rss>".encode(),
        FEED,
        (("S1", "Iron & steel pan", False), ("S2", "Tea pot < mug", False)),
    ),
}

LOG = ("query", "item", "item_id", "time")
BY_ID = ("query", "item_id", "time")


def event(name: str, minute: int, query: str | None, *ids: str) -> dict[str, Any]:
    """An event of GA4, as BigQuery exports it: whole numbers are texts."""
    term = [] if query is None else [{"key": "search_term", "value": {"string_value": query}}]
    return {
        "event_timestamp": str((NOON + 60 * minute) * 10**6),
        "event_name": name,
        "event_params": [{"key": "ga_session_id", "value": {"int_value": "17"}}, *term],
        "items": [{"item_id": each, "item_name": f"Name {each}"} for each in ids],
    }


EVENTS = [
    event("page_view", 0, None),
    event("view_search_results", 1, "red shoes"),
    event("view_item_list", 1, "red shoes", "S1", "S2"),
    event("select_item", 2, "red shoes", "S2"),
    event("purchase", 3, "tea pot", "S3", "S4"),
    event("select_item", 4, None, "S5"),
]
CHOSEN = (
    ("red shoes", "Name S2", "S2", NOON + 120),
    ("tea pot", "Name S3", "S3", NOON + 180),
    ("tea pot", "Name S4", "S4", NOON + 180),
)
VALUE = pa.struct({"string_value": pa.string(), "int_value": pa.int64()})
GA4 = pa.schema(
    {
        "event_timestamp": pa.int64(),
        "event_name": pa.string(),
        "event_params": pa.list_(pa.struct({"key": pa.string(), "value": VALUE})),
        "items": pa.list_(pa.struct({"item_id": pa.string(), "item_name": pa.string()})),
    }
)


def lines(*records: Mapping[str, Any]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in records).encode()


def parquet(records: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*records], schema=schema), out)
    return out.getvalue()


def numbered(record: dict[str, Any]) -> dict[str, Any]:
    """The event as Parquet has it, with numbers."""
    params = [
        {"key": each["key"], "value": {"int_value": 17} if "int_value" in each["value"] else each["value"]}
        for each in record["event_params"]
    ]
    return {**record, "event_timestamp": int(record["event_timestamp"]), "event_params": params}


def ubi(action: str, search: str, item: str) -> dict[str, Any]:
    found = {"object": {"object_id": item, "object_id_field": "sku"}, "position": {"ordinal": 3}}
    moment = "2026-10-01T10:00:00.000Z"
    return {"action_name": action, "query_id": search, "timestamp": moment, "event_attributes": found, "message": None}


def dumped(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as elasticdump writes it."""
    return {"_index": "ubi", "_id": "1", "_source": record}


ACTIONS = [
    ubi("click", "q1", "A"),
    ubi("product_hover", "q1", "B"),
    ubi("add_to_cart", "q2", "C"),
    ubi("click", "q9", "D"),
]
SEARCHES = [
    {"query_id": f"q{n}", "user_query": f"laptop {n}", "query_response_hit_ids": ["A", "B"], "timestamp": None}
    for n in (1, 2)
]
TEN = 1_790_848_800
CLICKED = (("laptop 1", "A", TEN), ("laptop 2", "C", TEN))
ALGOLIA = [("click", ["A"], "f1"), ("view", ["B"], "f1"), ("conversion", ["A", "C"], "f2"), ("click", ["D"], None)]
CASES |= {
    "ga4": Case("an export of GA4 to BigQuery", "events.jsonl", lines(*EVENTS), LOG, CHOSEN),
    "ga4, parquet": Case(
        "an export of GA4 to BigQuery", "events.parquet", parquet([*map(numbered, EVENTS)], GA4), LOG, CHOSEN
    ),
    "ubi": Case(
        "the events of OpenSearch UBI",
        "ubi_events.jsonl",
        lines(*ACTIONS),
        BY_ID,
        CLICKED,
        {"ubi_queries.ndjson": lines(*SEARCHES)},
    ),
    "ubi, dumped": Case(
        "the events of OpenSearch UBI",
        "ubi_events.json",
        lines(*map(dumped, ACTIONS)),
        BY_ID,
        CLICKED,
        {"ubi_queries.json": lines(*map(dumped, SEARCHES)), "notes.csv": b"a,b\n1,2\n"},
    ),
    "ubi, queries": Case(
        "the queries of OpenSearch UBI",
        "ubi_queries.jsonl",
        lines({**SEARCHES[0], "timestamp": TEN}, {**SEARCHES[1], "timestamp": TEN, "query_response_hit_ids": []}),
        BY_ID,
        (("laptop 1", "A", TEN), ("laptop 1", "B", TEN)),
    ),
    "algolia": Case(
        "the events of Algolia Insights",
        "events.jsonl",
        lines(
            *(
                {"eventType": kind, "userToken": "u", "timestamp": TEN * 1000, "objectIDs": ids, "queryID": search}
                for kind, ids, search in ALGOLIA
            )
        ),
        BY_ID,
        (("phone", "A", TEN), ("phone, new", "A", TEN), ("phone, new", "C", TEN)),
        {"searches.csv": b'queryID,query\nf1,phone\nf2,"phone, new"\n'},
    ),
    "esci, examples": Case(
        "the examples of Amazon ESCI",
        "shopping_queries_dataset_examples.parquet",
        parquet(
            [
                {"example_id": n, "query": "fan", "query_id": 0, "product_id": f"B{n}", "esci_label": grade}
                for n, grade in enumerate("EI")
            ]
        ),
        ("row_id", "query", "item_id", "esci_label", "time"),
        (("0", "fan", "B0", "E", NOON), ("1", "fan", "B1", "I", NOON)),
    ),
    "esci, products": Case(
        "the products of Amazon ESCI",
        "shopping_queries_dataset_products.parquet",
        parquet(
            [
                {"product_id": "B0", "product_title": "Fan", "product_locale": "us", "product_color": "red"},
                {"product_id": "B1", "product_title": None, "product_locale": "us", "product_color": None},
            ]
        ),
        FEED,
        (("B0", "Fan", False),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_printed_command_ingests_the_export(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    for file, content in {case.file: case.content, **case.beside}.items():
        Path(file).write_bytes(content)
    os.utime(case.file, (NOON, NOON))
    options = ("--format", "csv") if case.file.endswith(".txt") else ()
    shown = call(capsys, "look", case.file, *options)
    assert shown.code == 0, shown.err
    assert f", {case.name}: " in shown.out.splitlines()[0]
    assert not [line for line in shown.out.splitlines() if line.startswith("check:") and "alone: ingest" not in line]
    ingested = call(capsys, *shlex.split(shown.out.splitlines()[-1])[1:])
    assert ingested.code == 0, ingested.err
    rows = [
        row for path in sorted(Path("workspace").rglob("part-*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    for row in rows:
        row["time"] = int(row["time"].timestamp())
    assert [tuple(row[column] for column in case.columns) for row in rows] == [*case.rows]
    assert "time" in case.columns or {row["time"] for row in rows} == {NOON}


def test_a_log_whose_queries_are_in_another_file_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ubi_events.jsonl").write_bytes(lines(*ACTIONS))
    shown = call(capsys, "look", "ubi_events.jsonl")
    assert shown.code == 0, shown.err
    assert "'query_id' and 'user_query'" in shown.out
    words = shlex.split(shown.out.splitlines()[-1])
    assert words[words.index("--lookup") + 1] == "QUERIES"
    Path("QUERIES.csv").write_text("query_id,user_query\nq1,laptop\n")
    words[words.index("QUERIES")] = "QUERIES.csv"
    ingested = call(capsys, *words[1:])
    assert ingested.code == 0, ingested.err
    assert "of --lookup" in ingested.out
    by = words.index("--by")
    assert call(capsys, *words[1:by], *words[by + 2 :]).code == 78


def test_a_first_configuration_knows_exports_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("products.csv").write_bytes(CASES["shopify"].content)
    Path("ubi_events.jsonl").write_bytes(lines(*ACTIONS))
    refused = call(capsys, "init", "products.csv")
    assert (refused.code, "Shopify" in refused.err, "--items" in refused.err) == (78, True, True)
    made = call(capsys, "init", "ubi_events.jsonl", "--items", "products.csv")
    assert made.code == 0, made.err
    assert "in another file" in made.out
    assert "--only Title --at" in made.out


def test_options_that_leave_no_row_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("at,q,sku\n2026-10-01,pan,S1\n")
    there = ("--workspace", str(tmp_path / "w"), "--only", "event=click")
    told = ("--time-column", "at", "--span", "month", "--map", "query=q,item_id=sku")
    for words in (("look", str(tmp_path / "log.csv")), ("ingest", "--source", str(tmp_path / "log.csv"), *told)):
        refused = call(capsys, *words, *there)
        assert (refused.code, "--only event=click; " in refused.err) == (65, True)
