import pytest

from tasks.worker.rows.columns import swapped, word_counts

SEARCHES = ["where can I find a red lamp", "a good chair for the kitchen please"]
TITLES = ["Lamp Acme 40 cm, steel", "Chair Zen, oak, boxed"]
EARLIER = {"query": word_counts(SEARCHES), "item": word_counts(TITLES)}


@pytest.mark.parametrize(
    ("query", "item", "wrong"),
    [
        (SEARCHES, TITLES, False),
        (TITLES, SEARCHES, True),
        (TITLES, TITLES, False),  # only one of them has changed
        ([], [], False),
        (["etwas ganz anderes"], ["noch etwas"], False),
    ],
)
def test_both_columns_must_be_nearer_to_the_other_one(query: list[str], item: list[str], wrong: bool):
    now = {"query": word_counts(query), "item": word_counts(item)}
    assert swapped(EARLIER, now, ("query", "item")) is wrong
