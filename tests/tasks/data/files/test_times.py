"""Times that are not believed: in the future, before the data began, or few rows far from all others."""

import datetime as dt
import errno
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind, last_day
from tasks.data.new_versions import Known
from tasks.data.source_spans import SetAside
from tasks.data.span_versions import list_spans
from tasks.foundation.errors import ConfigError, DataError, DiskError
from tests.support.workspace.inputs import review, run, write_input

GOOD = [review(number, f"2024-0{number % 6 + 1}-01") for number in range(60)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.mark.parametrize(
    ("day", "option"), [("3000-01-01", "--not-after"), ("1970-01-01", "--not-before"), ("0001-01-01", "--not-before")]
)
def test_a_time_that_no_row_has_is_refused_with_row_value_and_ways_out(
    store: DirectoryStore, tmp_path: Path, day: str, option: str
) -> None:
    source = write_input(tmp_path / "input", [*GOOD, review(99, day)])
    with pytest.raises(DataError, match=rf"row 61, .*{day} .*{option}"):
        run(store, source)
    assert not store.root.exists()


def test_the_last_day_of_the_calendar_may_be_given(store: DirectoryStore, tmp_path: Path) -> None:
    source = write_input(tmp_path / "input", GOOD)
    assert run(store, source, not_after=dt.date.max).rows == len(GOOD)


@pytest.mark.parametrize("span", list(SpanKind))
def test_the_last_year_of_the_calendar_stands_for_never(tmp_path: Path, span: SpanKind) -> None:
    source = write_input(tmp_path / "input", [*GOOD, review(98, "9998-12-31"), review(99, "9999-12-31")])
    said = "row 62, column 'at': 9999-12-31 stands for never; .*--set-aside FILE"
    with pytest.raises(DataError, match=said):
        run(DirectoryStore(tmp_path / "refused"), source, span=span, not_after=dt.date.max)
    store = DirectoryStore(tmp_path / "workspace")
    summary = run(store, source, span=span, not_after=dt.date.max, set_aside=tmp_path / "aside")
    assert (summary.rows, summary.set_aside) == (61, 1)
    assert all(last_day(ref.name) for ref in list_spans(store)), "each span has a next one"


def test_rows_that_cannot_be_used_are_set_aside_with_the_reason(store: DirectoryStore, tmp_path: Path) -> None:
    wrong = [review(98, "2024-01-01", at="soon"), review(99, "3000-01-01"), review(97, "2024-01-01", stars="five")]
    source = write_input(tmp_path / "input", [wrong[0], *GOOD, *wrong[1:]])
    summary = run(store, source, set_aside=tmp_path / "aside.jsonl")
    assert (summary.rows, summary.set_aside) == (60, 3)
    aside = [json.loads(line) for line in (tmp_path / "aside.jsonl").read_text().splitlines()]
    assert [(row["id"], re.search("row [0-9]+", row["why"]).group()) for row in aside] == [  # type: ignore[union-attr]
        ("r98", "row 1"),
        ("r99", "row 62"),
        ("r97", "row 63"),
    ]
    assert str(tmp_path / "aside.jsonl") in summary.notes[0]
    with pytest.raises(ConfigError, match="there is such a file"):
        run(store, source, set_aside=tmp_path / "aside.jsonl")


def test_the_same_command_after_a_question_finds_no_file_of_the_first_time(
    store: DirectoryStore, tmp_path: Path
) -> None:
    aside = tmp_path / "aside.jsonl"
    wrong = review(98, "2024-01-01", at="soon")
    run(store, write_input(tmp_path / "input", GOOD))
    source = write_input(tmp_path / "input", [*GOOD[:50], wrong])
    with pytest.raises(ConfigError, match="same command again"):
        run(store, source, set_aside=aside)
    assert not aside.exists(), "nothing was written"
    assert run(store, source, set_aside=aside, known=Known.replace).set_aside == 1
    assert len(aside.read_text().splitlines()) == 1


class Full(io.StringIO):
    """A file on a disk without space."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_of_the_rejects_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda *_, **__: Full())
    aside = SetAside(tmp_path / "aside.jsonl")
    with pytest.raises(DiskError, match=r"aside .*aside\.jsonl"):
        aside.take({"q": "lamp"}, DataError("row 1"))


def test_a_source_without_one_good_row_is_an_error_all_the_same(store: DirectoryStore, tmp_path: Path) -> None:
    source = write_input(tmp_path / "input", [review(1, "3000-01-01")])
    with pytest.raises(DataError, match=r"no row .*row 1"):
        run(store, source, set_aside=tmp_path / "aside.jsonl")


@pytest.mark.parametrize(
    ("day", "border", "truth"),
    [
        ("2004-03-01", "--not-before 2024-01-01", "--not-before 2004-03-01"),
        ("2026-02-01", "--not-after 2024-06-30", "--not-after 2026-02-28"),
    ],
)
def test_one_row_far_from_all_others_is_refused_unless_it_is_confirmed(
    store: DirectoryStore, tmp_path: Path, day: str, border: str, truth: str
) -> None:
    source = write_input(tmp_path / "input", [*GOOD, review(99, day)])
    with pytest.raises(DataError, match=rf"row 61, .*{day}.*{day[:7]}") as caught:
        run(store, source)
    assert f"{border} --set-aside FILE" in str(caught.value)
    assert str(caught.value).endswith(truth)
    assert list_spans(store) == []
    option, value = truth.split()
    said: dict[str, Any] = {option[2:].replace("-", "_"): value}
    run(store, source, **said)
    assert day[:7] in [span.name for span in list_spans(store)]


def test_the_border_that_an_error_names_sets_the_far_row_aside(store: DirectoryStore, tmp_path: Path) -> None:
    source = write_input(tmp_path / "input", [*GOOD, review(99, "2004-03-01")])
    summary = run(store, source, not_before="2024-01-01", set_aside=tmp_path / "aside")
    assert (summary.rows, summary.set_aside, len(summary.spans)) == (60, 1, 6)


def test_a_later_file_is_held_against_the_spans_of_the_workspace(store: DirectoryStore, tmp_path: Path) -> None:
    run(store, write_input(tmp_path / "input", GOOD))
    with pytest.raises(DataError, match="60 rows, 2024-01 to"):
        run(store, write_input(tmp_path / "next", [review(99, "2026-02-01")]))
    run(store, write_input(tmp_path / "many", [review(number, "2026-02-01") for number in range(30)]))
    run(store, write_input(tmp_path / "day", [review(99, "2024-07-01")]))


def test_what_is_far_depends_on_the_length_of_a_span(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [review(number, "2024-01-01") for number in range(60)]
    source = write_input(tmp_path / "input", [*rows, review(99, "2024-06-01")])
    with pytest.raises(DataError, match="1 row is in 2024-06-01"):
        run(store, source, span=SpanKind.day)
    run(store, source, span=SpanKind.month)
