"""Rows on neither side, found by comparing every row with every other, and by `find_sides`."""

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.factory import drop_copy, open_store
from infra.store.manifest import CorruptFolder, read_manifest
from infra.store.s3_transfers import mirror_of
from tasks.contracts.evaluation import GOLDEN
from tasks.contracts.references import HoldoutRule, RowsRef, SpanRef
from tasks.data.holdout import LEFT_OUT, read_sides
from tasks.data.rows import QUERY
from tasks.judging.golden_set import store_golden_set
from tasks.worker.process.cores import Cores
from tasks.worker.rows import duplicates
from tasks.worker.rows.duplicates import SIGNATURES, LeftOut, check_left_out, find_sides
from tests.support.cloud.s3 import S3Server
from tests.support.pages.golden import Golden
from tests.support.workspace.jobs import change_rows, make_workspace, tiny_config

BY_ID = ("evaluate.group=row_id", "evaluate.holdout_share=0.3")


def changed(column: str, change: Any) -> Any:
    def of(table: pa.Table) -> pa.Table:
        values = [change(value) for value in table[column].to_pylist()]
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values))

    return of


class Shop:
    """A workspace whose spans go through `find_sides` one after the other."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder, self.config = folder, tiny_config(*overrides)
        self.store, self.plain = make_workspace(folder, rows=200)
        self.done: list[RowsRef] = []
        self.left: list[tuple[int, int]] = []
        self.golden: str | None = None

    def add(self, rows: RowsRef) -> RowsRef:
        """Find the sides of a span, after those before."""
        number = len(self.done)
        scratch = self.folder / f"scratch-{number}"
        scratch.mkdir()
        (found,), (left,) = find_sides(
            self.store, [rows], self.done, self.config, f"runs/{number}/sides", scratch, Cores(()), self.golden
        )
        self.done.append(found)
        self.left.append((left.training, left.held))
        return found

    def like(self, span: str, *changes: Any) -> RowsRef:
        """A span whose rows are those of the first one, with changes."""

        def all_of(table: pa.Table) -> pa.Table:
            for change in changes:
                table = change(table)
            return table

        return change_rows(self.store, self.plain, span, all_of, self.folder)

    def sides(self, column: str = QUERY) -> tuple[list[str], list[str]]:
        """What was trained on, and what is held out, of all spans."""
        found = list(read_sides(self.store, self.done, HoldoutRule.of(self.config.evaluate), []))
        return tuple([v for sides in found for v in side(sides)[column].to_pylist()] for side in SIDES)  # type: ignore[return-value]


SIDES = (lambda sides: sides.training, lambda sides: sides.held)
OTHER_ITEMS = changed("item_id", lambda item_id: f"x{item_id}")
NEW_IDS = changed("row_id", lambda row_id: f"again-{row_id}")


def test_nothing_is_left_out_of_rows_that_are_not_alike(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.add(shop.plain)
    training, held = shop.sides()
    assert shop.left == [(0, 0)]
    assert len(training) + len(held) == 200


def test_equal_texts_are_never_on_both_sides_however_rows_are_grouped(tmp_path: Path) -> None:
    shop = Shop(tmp_path, *BY_ID, "evaluate.near_duplicates=null")
    shop.add(shop.plain)
    shop.add(shop.like("2026-02", NEW_IDS, changed(QUERY, str.upper)))
    training, held = shop.sides()
    both = zip((training, held), shop.sides("item"), strict=True)
    pairs = [{(query.lower(), item) for query, item in zip(*each, strict=True)} for each in both]
    assert not pairs[0] & pairs[1]
    left_training, left_held = shop.left[1]
    assert left_training > 20
    assert left_held > 20
    assert len(training) + len(held) == 400 - left_training - left_held


def test_a_row_with_other_words_is_known_by_its_id_and_item(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "evaluate.near_duplicates=null", "evaluate.holdout_share=0.3")
    shop.add(shop.plain)
    shop.add(shop.like("2026-02", changed(QUERY, lambda query: f"quite another {query[7:9]}")))
    training, held = shop.sides("row_id")
    assert not set(training) & set(held)
    assert sum(shop.left[1]) > 40
    new_query = changed(QUERY, lambda query: f"new {query[:9]}")
    shop.add(shop.like("2026-03", new_query, OTHER_ITEMS))
    assert shop.left[2] == (0, 0), "ids that are counted anew in each span say nothing"


LONG = " ".join(f"word{number}" for number in range(60))


@pytest.mark.parametrize(("similarity", "found"), [(0.9, True), (0.92, False)])
def test_near_duplicates_are_found_from_the_similarity_on(tmp_path: Path, similarity: float, found: bool) -> None:
    shop = Shop(tmp_path, *BY_ID, f"evaluate.near_duplicates={{similarity: {similarity}}}")
    numbers = itertools.count()
    ends = changed(QUERY, lambda _: "a{0} b{0} c{0} {1} a{0} b{0} c{0}".format(next(numbers), LONG))
    shop.plain = change_rows(shop.store, shop.plain, "2026-02", ends, tmp_path)
    shop.add(shop.plain)
    another_word = changed(QUERY, lambda query: query.replace("word30", "another"))  # 63 of 69 runs: 0.913
    shop.add(shop.like("2026-03", NEW_IDS, OTHER_ITEMS, another_word))
    assert shop.left[0] == (0, 0)
    training, held = shop.left[1]
    assert (training > 20) is found
    assert (held > 20) is found


def test_a_large_share_left_out_of_training_is_a_warning_that_names_the_span(golden: Golden) -> None:
    refs = [RowsRef(span=SpanRef(name=name, version=1), prefix="", rows=200) for name in ("2026-01", "2026-02")]
    assert check_left_out(refs, [LeftOut(40, 0, 0), LeftOut(0, 160, 0)]).passed, "exactly the limit"
    found = check_left_out(refs, [LeftOut(3, 0, 0), LeftOut(41, 0, 0)])
    assert (found.passed, found.severity, found.observed) == (False, "warning", 0.205)
    golden(found.sentence)


def test_a_list_says_which_row_each_is_like(tmp_path: Path) -> None:
    shop = Shop(tmp_path, *BY_ID)
    shop.add(shop.plain)
    found = shop.add(shop.like("2026-02", NEW_IDS))
    left_out = pq.read_table(shop.store.path(f"{found.sides}/{LEFT_OUT}")).to_pylist()
    assert len(left_out) == sum(shop.left[1])
    assert all(f"again-{row['like_row_id']}" == row["row_id"] for row in left_out)
    assert {row["like_span"] for row in left_out} == {"2026-01"}
    assert {row["similarity"] for row in left_out} == {1.0}
    assert {row["held"] for row in left_out} == {True, False}


def test_rows_with_the_texts_of_a_golden_row_are_not_trained_on(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    (sides,) = read_sides(shop.store, [shop.plain], HoldoutRule.of(shop.config.evaluate), [])
    golden = [*sides.training.to_pylist()[:3], *sides.held.to_pylist()[:2]]
    lines = [{"query": golden[0]["query"], "item": "another item"}]
    lines += [{"query": row["query"].upper(), "item": f"{row['item']} "} for row in golden[1:]]
    file = tmp_path / "golden.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shop.golden = store_golden_set(shop.store, str(file))
    found = shop.add(shop.plain)
    left_out = pq.read_table(shop.store.path(f"{found.sides}/{LEFT_OUT}")).to_pylist()
    assert [row["row_id"] for row in left_out] == [row["row_id"] for row in golden[1:3]]
    assert {row["like_span"] for row in left_out} == {GOLDEN}
    assert read_manifest(shop.store, str(found.sides)).facts["golden"] == 2


def test_a_row_that_was_left_out_is_no_reason_to_leave_out_another(tmp_path: Path) -> None:
    shop = Shop(tmp_path, *BY_ID)
    shop.add(shop.plain)
    shop.add(shop.like("2026-02", NEW_IDS))
    shop.add(shop.like("2026-03", NEW_IDS))
    left = shop.done[2]
    rows = pq.read_table(shop.store.path(f"{left.sides}/{LEFT_OUT}")).to_pylist()
    assert {row["like_span"] for row in rows} == {"2026-01"}
    assert shop.left[2] == shop.left[1]


def test_spans_of_one_window_and_of_several_runs_have_the_same_sides(tmp_path: Path) -> None:
    shop = Shop(tmp_path, *BY_ID)
    refs = [shop.plain, shop.like("2026-02", NEW_IDS)]
    for ref in refs:
        shop.add(ref)
    scratch = tmp_path / "at-once"
    scratch.mkdir()
    together, left = find_sides(shop.store, refs, [], shop.config, "runs/once", scratch, Cores(()))
    assert [(each.training, each.held) for each in left] == shop.left
    for one, other in zip(together, shop.done, strict=True):
        for name in (LEFT_OUT, SIGNATURES):
            files = [shop.store.path(f"{each.sides}/{name}").read_bytes() for each in (one, other)]
            assert files[0] == files[1]


@pytest.mark.parametrize("compared", [1, 20])
def test_rows_that_are_compared_some_at_a_time_leave_out_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: int
) -> None:
    """Each row has more rows like it, in several spans, than it is compared with."""
    monkeypatch.setattr(duplicates, "COMPARED", compared)
    shop = Shop(tmp_path, *BY_ID)
    few = changed(QUERY, lambda query: f"a lamp of {len(query) % 3} {LONG}")
    shop.plain = change_rows(shop.store, shop.plain, "2025-12", few, tmp_path)
    spans = [shop.plain]
    for number in range(2, 5):
        other = changed("row_id", lambda row_id, number=number: f"{number}-{row_id}")
        end = changed(QUERY, lambda query, number=number: f"{query} end{number}")
        spans.append(shop.like(f"2026-{number:02d}", other, OTHER_ITEMS, end))
    found = []
    for size, rows in ((2**35, 2**18), (1, 2**18), (2**35, 3)):  # of the history, of the span
        monkeypatch.setattr(duplicates, "BYTES_AT_ONCE", size)
        monkeypatch.setattr(duplicates, "ROWS_AT_ONCE", rows)
        scratch = tmp_path / f"at-once-{size}-{rows}"
        scratch.mkdir()
        refs, left = find_sides(shop.store, spans, [], shop.config, f"runs/{size}-{rows}", scratch, Cores(()))
        lists = [pq.read_table(shop.store.path(f"{ref.sides}/{LEFT_OUT}")).to_pylist() for ref in refs]
        found.append((lists, left))
    assert found[0] == found[1] == found[2]
    assert all(sum(each) > 20 for each in found[0][1][1:])
    assert len({row["like_span"] for row in found[0][0][-1]}) > 1


def test_of_a_bucket_the_signatures_on_the_disk_are_bounded(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    refs = [shop.plain, *(shop.like(f"2026-{number:02d}", NEW_IDS) for number in range(2, 6))]
    bucket = open_store(s3.new_workspace())
    for key in shop.store.list(""):
        bucket.upload(shop.store.path(key), key)
    there: list[int] = []
    real = bucket.local

    def local(key: str, names: Collection[str] | None = None) -> Path:
        path = real(key, names)
        there.append(len([*mirror_of(bucket.uri).folder.rglob(SIGNATURES)]))
        return path

    monkeypatch.setattr(bucket, "local", local)
    (tmp_path / "all").mkdir()
    done, _ = find_sides(bucket, refs[:4], [], shop.config, "runs/1", tmp_path / "all", Cores(()))
    assert max(there) == 3, "a short history is fetched once"
    for size, most in ((2**35, 4), (1, 1)):
        for ref in done:
            drop_copy(bucket, f"{ref.sides}/{SIGNATURES}")
        there.clear()
        monkeypatch.setattr(duplicates, "BYTES_AT_ONCE", size)
        (tmp_path / str(size)).mkdir()
        find_sides(bucket, refs[4:], done, shop.config, f"runs/{size}", tmp_path / str(size), Cores(()))
        assert max(there) == most


def test_an_earlier_span_without_signatures_is_not_compared_with(tmp_path: Path) -> None:
    shop = Shop(tmp_path, *BY_ID)
    shop.done.append(shop.plain)
    shop.add(shop.like("2026-02", NEW_IDS))
    assert shop.left == [(0, 0)]


def test_damaged_signatures_stop_the_run(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    found = shop.add(shop.plain)
    shop.store.path(f"{found.sides}/{SIGNATURES}").write_bytes(b"no Parquet")
    with pytest.raises(CorruptFolder, match=SIGNATURES):
        shop.add(shop.like("2026-02", NEW_IDS))
