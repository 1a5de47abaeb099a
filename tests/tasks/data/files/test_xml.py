"""Feeds in XML: texts with markup, and encodings."""

import subprocess
from pathlib import Path

import pytest

from tasks.data.files.sources import SourceReader
from tasks.foundation.errors import DataError


def rows(path: Path) -> list[dict[str, object]]:
    return [row.values for row in SourceReader(path)]


@pytest.mark.parametrize(
    ("inside", "value"),
    [
        ("A <b>blue </b>lamp", "A blue lamp"),
        ("A lamp<br/>of glass", "A lamp of glass"),
        ("<p>A <i>very <b>blue</b></i> lamp</p> &amp; more", "A very blue lamp & more"),
        (" <country>DE</country> <price>5 EUR</price> ", {"country": "DE", "price": "5 EUR"}),
        ("<div>A <b>blue</b> lamp</div>", {"div": "A blue lamp"}),
        ("", None),
    ],
)
def test_a_text_with_elements_in_it_is_one_text(tmp_path: Path, inside: str, value: object) -> None:
    path = tmp_path / "feed.xml"
    path.write_text(f"<rss><item><title>{inside}</title><id>S1</id></item></rss>")
    assert rows(path) == [{"title": value, "id": "S1"}]


@pytest.mark.parametrize("encoding", ["gb2312", "shift_jis"])
def test_an_encoding_that_is_not_read_is_named_with_a_command_that_converts_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "feed.xml"
    feed = f'<?xml version="1.0" encoding="{encoding}"?>\n<rss><item><title>\u706f</title></item></rss>'
    path.write_text(feed, encoding)
    with pytest.raises(DataError, match=rf"feed\.xml: .*'{encoding}'") as refused:
        rows(path)
    command = str(refused.value).partition("convert it: ")[2]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert rows(tmp_path / "utf8-feed.xml") == [{"title": "\u706f"}]


def test_an_encoding_that_nobody_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "feed.xml"
    path.write_text('<?xml version="1.0" encoding="foo"?><rss><item><title>A</title></item></rss>')
    with pytest.raises(DataError, match=r"feed\.xml: .*'foo'"):
        rows(path)
