"""One test of each renderer: tables, escaping, and nothing active in HTML."""

from __future__ import annotations

import io
import math
import threading
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flows.presentation import html, markdown, terminal, wording
from flows.presentation.figures import MOST_POINTS, curves, svg
from flows.presentation.model import Cell, Command, Page, Section, Tile, files, table, thinned
from infra.store.factory import console_page
from tests.support.pages.shown import Page as Shown
from tests.support.pages.shown import blocks, tables

# What ends a cell, opens markup or is HTML; and any other letters that can be seen.
WORDS = st.text(st.one_of(st.sampled_from("|\\`*_[]<>&~#!()\n\"' -+=:"), st.characters(exclude_categories=("C", "Z"))))
HOSTILE = "a | <script>alert(1)</script> `b` [c](javascript:d) [red]e"

SECTION = Section(
    "Title *x*",
    (HOSTILE,),
    id="title",
    quote=HOSTILE,
    figures=(curves("loss", "falls", [(0, {"loss": 2.0}), (5, {"loss": 1.0})]),),
    tables=(
        table("Facts", ("name", ">number", "~text"), [(HOSTILE, "1,204", Cell("refused", "✕", "bad"))]),
        table("Long", ("step", ">loss"), [(f"step {i}", "1.0") for i in range(25)], folded=True),
    ),
    commands=(Command("Copy this:", ("echo 'a | b'", "echo c")),),
    parts=(
        Section("Part", tables=(table("", ("what", "link"), [("bad", Cell("x", link="javascript:alert(1)"))]),)),
        files((("record", "runs/k/train/attempt-1/ledger.json"), ("folder", "models/m"))),
    ),
)
PAGE = Page("Report", "/data/w", "runs/k/report.html", "2026-W01", HOSTILE, (), Cell("Failed", "!", "bad"),
            (Tile("Cost", Cell("$1.00"), "no prices"),), (), (SECTION,))  # fmt: skip


def written(words: str) -> str:
    return "".join(words.split())


# --- Markdown ---------------------------------------------------------------------------------------------------


@given(WORDS)
def test_any_words_stay_in_their_cell_in_markdown(words: str) -> None:
    section = Section("t", tables=(table("", ("a", "b", "c"), [(words, Cell(words, code=True), "end")]),))
    ((_, (plain, code, end)),) = tables(markdown.page(section, ""))
    assert (written(plain), written(code), end) == (written(words), written(words), "end")


def test_markdown_shows_tables_commands_figures_and_parts() -> None:
    page = markdown.page(SECTION, "s3://bucket/some/prefix")
    assert page.startswith("# Title \\*x\\*\n")
    assert "\n## Part\n" in page
    facts, long, _, stored = tables(page)
    assert facts == [["name", "number", "text"], [HOSTILE, "1,204", "✕ refused"]]
    assert [long[1][0], long[-1][0], len(long)] == ["step 0", "step 24", 11]
    assert "(10 of 25 rows)" in page
    assert stored[1:] == [["record", "s3://bucket/some/prefix/runs/k/train/attempt-1/ledger.json"],
                          ["folder", "s3://bucket/some/prefix/models/m"]]  # fmt: skip
    assert "prefix=some/prefix/models/m/)" in page
    assert blocks(page)[-1] == "echo 'a | b'\necho c\n"
    assert "](data:image/svg+xml;base64," in page
    assert "`/data/w/models/m`" in markdown.page(SECTION, "/data/w")


def test_an_answer_in_markdown_has_its_pages_and_no_pictures() -> None:
    shown = markdown.answer(("a line", PAGE, Command("Copy *this*:", ("echo d",)), SECTION.tables[1]), "/data/w")
    assert shown.startswith("a line\n\n# 2026-W01: Failed\n")
    assert "\n## Title \\*x\\*\n" in shown
    assert "data:image" not in shown
    tiles, facts, *_, long = tables(shown)
    assert (tiles[1:], facts[1][0]) == ([["Cost", "$1.00; no prices"]], HOSTILE)
    assert (long[0], len(long)) == (["step", "loss"], 11)
    assert blocks(shown)[-1] == "echo d\n"


def test_long_cells_take_several_lines_and_no_more_than_can_be_read() -> None:
    lines = markdown.wrapped("word " * 4000).split("<br>")
    assert len(lines) == markdown.MOST_LINES
    assert max(map(len, lines)) <= markdown.MOST_LETTERS
    assert lines[-1].endswith(" …")


def test_markdown_links_escape_brackets_and_spaces() -> None:
    assert markdown.link("a [b]", "http://h/x y)z") == r"[a \[b\]](http://h/x%20y%29z)"


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 cells .* 2 columns"):
        table("", ("a", "b"), [("x",)])


# --- HTML -------------------------------------------------------------------------------------------------------


def test_html_loads_nothing_and_has_no_scripts() -> None:
    data = html.render(PAGE)
    page = Shown(data)
    assert HOSTILE in page.text
    assert page.all("script") == []
    assert not any(word in data for word in (b"@import", b"url(", b'"javascript:'))
    assert all(address.startswith("data:") for address in page.fetched)
    assert any("default-src 'none'" in meta.get("content", "") for meta in page.all("meta"))
    links = {link["href"] for link in page.all("a")}
    assert links == {"#title", "train/attempt-1/ledger.json"}  # relative to the page
    assert page.row("folder") == ["folder", "models/m"]
    assert len(page.all("details")) == 1


def test_a_page_is_made_without_compiling_its_templates_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def ledger(page: bytes) -> list[str]:
        return [link["href"] for link in Shown(page).all("a") if link["href"].endswith("ledger.json")]

    assert ledger(html.render(PAGE)) == ["train/attempt-1/ledger.json"]
    monkeypatch.setattr("jinja2.Environment.compile", lambda *_: pytest.fail("it was compiled again"))
    other = PAGE._replace(key="reports/history.html")
    assert ledger(html.render(other)) == ["../runs/k/train/attempt-1/ledger.json"]


def test_html_is_readable_by_a_screen_reader() -> None:
    page = Shown(html.render(PAGE))
    assert page.all("html")[0]["lang"] == "en"
    assert all(len(image["alt"]) > 20 for image in page.all("img"))
    assert len(page.all("figcaption")) == len(page.all("img")) == 1
    assert all(heading.get("scope") in ("col", "row") for heading in page.all("th"))
    assert all(each["aria-label"] for each in page.all("table"))
    assert len(page.ids) == len(set(page.ids))


# --- the terminal -----------------------------------------------------------------------------------------------


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for each in terminal.page(PAGE):
        console.print(each, highlight=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_shows_everything_within_its_width(width: int) -> None:
    lines = printed(width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0] == "2026-W01  ! Failed"
    text = written(printed(width))
    for words in (HOSTILE, "1,204", "✕ refused", "(10 of 25 rows)", "/data/w/runs/k/train/attempt-1/ledger.json"):
        assert written(words) in text
    assert "  echo 'a | b'" in lines


def test_lines_to_copy_are_not_broken_in_the_terminal() -> None:
    long = "word " * 40 + "end"
    console = Console(file=io.StringIO(), width=80)
    for each in terminal.render(Section("t", quote=long, commands=(Command("do", (long,)),)), ""):
        console.print(each, crop=False)
    assert isinstance(console.file, io.StringIO)
    assert {long, f"  {long}"} <= set(console.file.getvalue().splitlines())


def test_a_table_that_is_too_wide_is_cut_and_repeats_its_names() -> None:
    columns = ("attempt", *(f">phase {i}" for i in range(20)))
    wide = terminal.Columns(table("", columns, [("train 1", *(str(i) * 5 for i in range(20)))]))
    console = Console(file=io.StringIO(), width=80)
    console.print(wide)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert sum(line.startswith("train 1") for line in lines) > 1
    assert all(str(i) * 5 in " ".join(lines) for i in range(20))


def test_long_texts_of_a_narrow_terminal_are_below_their_row_and_names_come_once() -> None:
    sentence = "recall@10 0.4513 is 0.1654 below the champion's 0.6167; allowed is a drop of 0.0050"
    rows = [
        (f"recall@10 vs {each}", "refused", "critical", sentence, "647 holdout rows among 1,710 items")
        for each in ("champion", "best")
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal.Columns(table("", ("gate", "verdict", "severity", "~in words", "~over"), rows)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["gate", "verdict", "severity"]
    assert [sum(f"vs {each}" in line for line in lines) for each in ("champion", "best")] == [1, 1]
    assert written(sentence) in written(console.file.getvalue())


# --- figures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [5, 8, 20])
def test_lines_of_a_figure_differ_without_their_colours(many: int) -> None:
    from matplotlib.figure import Figure

    names = [f"metric {place}" for place in range(many)]
    canvas = Figure()
    curves("", "", [(step, {name: step * place for place, name in enumerate(names)}) for step in (0, 5)]).draw(canvas)
    lines = canvas.axes[0].lines
    assert [line.get_label() for line in lines] == names
    looks = {(repr(line._unscaled_dash_pattern), line.get_marker()) for line in lines}  # pyright: ignore
    assert len(looks) == many
    if many <= 8:
        assert len({line.get_color() for line in lines}) == len({dashes for dashes, _ in looks}) == many


def test_the_same_numbers_give_the_same_bytes_in_several_threads() -> None:
    figure = curves("loss", "", [(step, {"loss": 2 * math.exp(-step / 300), "auc": 0.5}) for step in range(0, 1500, 5)])
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(svg(figure))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {svg(figure)}
    assert len(found[0]) < 60_000
    links = [
        v for part in ElementTree.fromstring(found[0]).iter() for n, v in part.attrib.items() if n.endswith("href")
    ]
    assert all(link.startswith("#") for link in links)


def test_nan_and_infinity_are_gaps_in_a_curve() -> None:
    values = (1.0, math.nan, math.inf, 0.5)
    drawn = svg(curves("loss", "", [(step, {"loss": value}) for step, value in enumerate(values)]))
    ElementTree.fromstring(drawn)
    assert b"nan" not in drawn


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    found = thinned(list(range(10_001)), MOST_POINTS)
    assert (len(set(found)), found[0], found[-1]) == (MOST_POINTS, 0, 10_000)
    assert thinned([1, 2, 3], MOST_POINTS) == [1, 2, 3]


# --- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (wording.duration(4.12), "4.1 s"),
        (wording.duration(42.3), "42 s"),
        (wording.duration(80), "1 min 20 s"),
        (wording.duration(9060), "2 h 31 min"),
        (wording.duration(14 * 86400), "14 d"),
        (wording.duration(60.5 * 3600), "2 d 12 h"),
        (wording.duration(-80), "−1 min 20 s"),
        (wording.duration(math.inf), "–"),
        (wording.dollars(0), "$0.00"),
        (wording.dollars(0.0036), "$0.0036"),
        (wording.dollars(1234.5), "$1,234.50"),
        (wording.share(0.952), "95.2 %"),
        (wording.share(None), "–"),
        (wording.difference(0.3, 0.4), "−0.1000"),
        (wording.moment("2026-11-23T06:00:59+01:00"), "2026-11-23 05:00"),
        (console_page("s3://bucket", ""), "https://s3.console.aws.amazon.com/s3/buckets/bucket?prefix="),
        (console_page("s3://b/p", "releases/3.json"), "https://s3.console.aws.amazon.com/s3/object/b?prefix=p/releases/3.json"),
        (console_page("s3://b", "runs/a b"), "https://s3.console.aws.amazon.com/s3/buckets/b?prefix=runs/a%20b/"),
        (console_page("/data", "runs"), ""),
    ],
)  # fmt: skip
def test_durations_dollars_shares_and_addresses_are_written_like_this(said: str, words: str) -> None:
    assert said == words
