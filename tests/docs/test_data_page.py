"""The chapter on one's own data: its ingest commands, run in their order on files like those that it speaks of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_pages import ROOT, named_commands
from tests.support.processes.command import call

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def review(number: int, day: str, **changes: Any) -> dict[str, Any]:
    row = {"review_id": f"r{number}", "timestamp": day, "text": f"keeps water hot {number}", "product_title": "Kettle"}
    return row | {"asin": "B01", "rating": 5} | changes


REVIEWS = [review(number, "2022-11-03") for number in range(91)]
FILES = {
    "reviews.jsonl": REVIEWS,
    "late.jsonl": [*(review(200 + number, "2022-08-01") for number in range(40)), review(300, "1999-01-01")],
    "corrected.jsonl": [
        *(review(number, "2022-11-03", text="leaks") for number in range(17)),
        *(review(number, "2022-11-03") for number in (91, 92)),
    ],
    "products.jsonl": [{"sku": "B01", "title": "Kettle", "updated_at": "2022-11-01", "removed": False}],
    "clicks.jsonl": [{"search": "kettle", "sku": "B01", "clicked_at": f"2022-05-{day:02}"} for day in range(1, 31)],
    "searches.jsonl": [{"search": "kettle", "at": "2022-01-05", "shown": ["B02", "B01"], "clicked": ["B01"]}],
}


def test_the_commands_of_the_page_work_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLRACE_WORKSPACE", str(tmp_path / "workspace"))
    for name, rows in FILES.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = {}
    for name, *arguments in named_commands(PAGE):
        if name != "ingest":
            continue
        if "--merge" in arguments:
            asked = call(capsys, name, *(word for word in arguments if word != "--merge"))
            shown = re.search(r"^CONFIG: the workspace has.*?\n.*?\n", PAGE, re.M | re.S)
            assert shown
            assert shown[0] in asked.err
        result = call(capsys, name, *arguments)
        assert result.code == 0, result.err
        said[next(word for word in arguments if word.endswith(".jsonl"))] = result.out
    assert set(said) == set(FILES)
    assert "1, in refused.jsonl" in said["late.jsonl"]
    assert re.search(r"^2022-Q4 +v2 +93 +new: 17 changed", said["corrected.jsonl"], re.M)
