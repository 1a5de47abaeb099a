"""Values that are gone from a window: a market that an export lacks stops; a new name or a season does not."""

import numpy as np
import pandas as pd
import pytest

from configs.load import load_config
from tasks.worker.rows.columns import Compared
from tasks.worker.rows.values import judge_values
from tests.support.pages.golden import Golden
from tests.support.workspace.spans import FEATURES, SCRATCH

CONFIG = load_config(None, [SCRATCH, *FEATURES])
ROWS, ITEMS = 1000, 400
LOCALE, BRAND = "usual values of locale", "usual values of brand"


def window(kept: str = "", renamed: bool = False, rows: int = ROWS, of_brands: int = 5) -> Compared:
    """Rows about items, each of one locale and one brand; `kept` leaves some of them out."""
    item = np.arange(rows) * 7 % ITEMS
    table = pd.DataFrame(
        {"item": item, "locale": np.where(item % 2, "de", "en"), "brand": [f"b{i % of_brands}" for i in item]}
    )
    table = pd.DataFrame(table.query(kept)) if kept else table
    brand = table["brand"].map(lambda each: f"{each} new") if renamed else table["brand"]
    series = {
        name: pd.Series(each.to_numpy(dtype=object)) for name, each in (("locale", table["locale"]), ("brand", brand))
    }
    return Compared(len(table), series, {}, {}, {}, table["item"].to_numpy().astype(np.uint64), {})


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (window(), {}),
        (window("locale == 'en'"), {LOCALE: "critical"}),
        (window("brand != 'b3'"), {BRAND: "warning"}),  # a fifth of the rows: a department that closes, or a gap
        (window(renamed=True), {}),  # the items are there
        (window("locale == 'en' or item % 5 == 0"), {}),  # a season: a fifth of its rows is left
        (window("locale == 'en'", rows=90), {}),  # 45 rows were expected: too few to judge
    ],
)
def test_a_value_is_gone_with_its_items_or_it_is_there(now: Compared, expected: dict[str, str]) -> None:
    found = judge_values(window(), now, CONFIG)
    assert {each.name: each.severity for each in found if not each.passed} == expected


def test_the_sentence_names_the_value_its_share_and_the_ways_out(golden: Golden) -> None:
    (locale, _) = judge_values(window(), window("locale == 'en'"), CONFIG)
    golden(locale.sentence)
    assert "millrace ingest --merge" in locale.sentence
    assert "--set validate.before.value.stop=null" in locale.sentence


def test_the_first_span_has_nothing_to_lack() -> None:
    nothing = Compared(0, {}, {}, {}, {}, np.empty(0, np.uint64), {})
    assert all(each.passed and each.observed is None for each in judge_values(nothing, window(), CONFIG))
