import pytest

from tasks.foundation.nouns import plural


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (plural(0, "shard"), "0 shards"),
        (plural(1, "shard"), "1 shard"),
        (plural(2000, "shard"), "2,000 shards"),
        (plural(1, "query", "queries"), "1 query"),
        (plural(2, "row has", "rows have"), "2 rows have"),
    ],
)
def test_a_number_stands_with_its_noun(said: str, words: str) -> None:
    assert said == words
