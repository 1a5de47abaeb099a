import numpy as np

from tasks.data.query_places import hash_queries
from tasks.worker.model.relevant import Relevant, find_relevant, number_texts

QUERIES = ["Good  product", "good product ", "lamp"]
TEXTS = ["red shoe", "blue shoe", "a LAMP", "a lamp", "chair"]


def relevant(*pairs: tuple[str, int]) -> Relevant:
    keys = hash_queries([query for query, _ in pairs])
    items = np.array([item for _, item in pairs], dtype=np.int64)
    return find_relevant(hash_queries(QUERIES), number_texts(TEXTS), keys, items)


def items(found: Relevant, row: int, own: int) -> set[int]:
    return set(found.other_relevant_items(row, own).tolist())


def test_items_that_a_row_pairs_with_the_same_query_are_as_right():
    found = relevant(("good product", 0), ("GOOD PRODUCT", 1), ("another query", 4))
    assert items(found, 0, 0) == {1}
    assert items(found, 1, 1) == {0}, "case and spaces make no other query"
    assert items(found, 2, 2) == {3}, "nothing is known of this query"


def test_items_with_the_text_of_a_relevant_one_are_as_right():
    found = relevant(("lamp", 4), ("good product", 2))
    assert items(found, 2, 4) == set()
    assert items(found, 0, 2) == {3}
    assert items(found, 0, 0) == {2, 3}, "the text of an item that another row names"


def test_without_a_known_pair_only_texts_count():
    found = relevant()
    assert [items(found, 0, own) for own in range(5)] == [set(), set(), {3}, {2}, set()]
    nothing = np.array([], dtype=np.int64)
    assert find_relevant(nothing, number_texts(TEXTS), nothing, nothing).query.size == 0
