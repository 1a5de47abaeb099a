"""Runs and keys of rows: equal for rows that are alike, and the same in every year."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.worker.rows.signatures import BANDS, EXACT_KEYS, KEYS, RUNS, signatures


def table(*texts: tuple[str, str]) -> pa.Table:
    columns = {"row_id": [f"r{number}" for number in range(len(texts))], "item_id": ["i"] * len(texts)}
    return pa.table(columns | {"query": [query for query, _ in texts], "item": [item for _, item in texts]})


def runs_by_hand(query: str, item: str) -> set[tuple[str, ...]]:
    """Three words that follow each other, by side; a shorter text is one run."""
    found = set()
    for side, text in (("query", query), ("item", item)):
        words = [*text.split(), "", "", ""][: max(3, len(text.split()))]
        found |= {(side, *words[start : start + 3]) for start in range(len(words) - 2)}
    return found


TEXTS = st.tuples(*[st.lists(st.sampled_from("abcde"), max_size=9).map(" ".join)] * 2)


@settings(max_examples=50)
@given(st.lists(TEXTS, min_size=2, max_size=5))
def test_shared_runs_are_those_counted_by_hand(texts: list[tuple[str, str]]) -> None:
    found = [set(runs) for runs in signatures(table(*texts), 0, near=True)[RUNS].to_pylist()]
    by_hand = [runs_by_hand(*each) for each in texts]
    for one in range(len(texts)):
        for other in range(len(texts)):
            assert len(found[one] & found[other]) == len(by_hand[one] & by_hand[other])


def test_case_punctuation_and_width_make_no_difference() -> None:
    one, other = signatures(table(("A RED lamp.", "Lamp, No. 7"), ("a red  lamp!", "ＬＡＭＰ no 7")), 0, True)[
        RUNS
    ].to_pylist()
    assert one == other


def test_scripts_without_spaces_have_runs_too() -> None:
    one, other = signatures(table(("とても良いランプです", "x"), ("とても良いランプだ", "x")), 0, True)[
        RUNS
    ].to_pylist()
    assert 5 < len(set(one) & set(other)) < len(one)


def test_rows_that_are_alike_share_a_key_and_others_do_not() -> None:
    words = [f"w{number}" for number in range(60)]
    pairs = []
    for number in range(100):
        text = [f"{word}x{number}" for word in words]
        pairs += [(" ".join(text), "lamp"), (" ".join([*text[:-2], "the", "end"]), "lamp")]  # 57 of 61 runs
    keys = signatures(table(*pairs), 0, near=True)[KEYS].to_pylist()
    assert {len(each) for each in keys} == {EXACT_KEYS + BANDS}
    met = [
        {place for place, (one, other) in enumerate(zip(*keys[n : n + 2], strict=True)) if one == other}
        for n in range(199)
    ]
    assert all(met[::2])
    assert not any(met[1::2])


def test_a_text_gives_the_same_keys_whatever_rows_it_is_read_with() -> None:
    rows = [("a red lamp for the hall", "Lamp"), ("b", "c"), ("a blue one", "Chair with arms")]
    together = signatures(table(*rows), 5, near=True)
    assert together["place"].to_pylist() == [5, 6, 7]
    for number, row in enumerate(rows):
        alone = signatures(table(row), 0, near=True)
        assert alone[RUNS][0] == together[RUNS][number]
        assert alone[KEYS][0].as_py()[1:] == together[KEYS][number].as_py()[1:]


def test_of_an_earlier_row_the_same_keys_are_made_today() -> None:
    """Signatures are kept with each span: others would find nothing in it."""
    found = signatures(table(("a red lamp for the hall", "Lamp No. 7")), 0, near=True).to_pylist()[0]
    assert [hex(key) for key in found[KEYS][:4]] == GOLDEN_KEYS
    assert [hex(run) for run in found[RUNS][:2]] == GOLDEN_RUNS


GOLDEN_KEYS = ["0x8e8f0ec73d0d5434", "0xa5c1f627ead0ab45", "0x3a88e7010ee8ea84", "0xf2b7848e628ead8a"]
GOLDEN_RUNS = ["0x3f9c258", "0x6867e199"]
