"""Made-up contents of pages: changes from release 1 to release 2, and the map of release 2.

The changes have every kind of entry once. The map has ten values of a feature, the frequent ones
last, and movers since release 1.
"""

from __future__ import annotations

from tasks.contracts.maps import MappedItem, Mover, Moves, ReleaseMap
from tasks.contracts.search import Changes, Hit, ListedItem, QueryChange, SharedSearch


def hits(*texts: str) -> tuple[Hit, ...]:
    return tuple(
        Hit(score=0.9 - place / 10, item_id=f"i-{text}".replace(" ", "-"), text=text)
        for place, text in enumerate(texts)
    )


WIN = QueryChange(
    query="waterproof anorak",
    item_id="p1",
    text="rain jacket",
    rank_before=340,
    rank_after=1,
    before=hits("wool scarf", "hat", "gloves", "boots"),
    after=hits("rain jacket", "hat"),
)
CHANGES = WIN.model_copy(update={"query": "bento", "item_id": "p2", "text": "lunch box", "rank_before": None})
LOSS = QueryChange(
    query="<b>skillet</b> | `pan`",
    item_id="p3",
    text="frying pan",
    rank_before=2,
    rank_after=1_700,
    before=hits("cooking pot", "frying pan"),
    after=hits("chef knife"),
)
CHANGES = Changes(
    before=1,
    after=2,
    queries=1_163,
    metrics_before={"recall@10": 0.8, "mrr@10": 0.7},
    metrics_after={"recall@10": 0.9, "mrr@10": 0.65},
    shared=SharedSearch(
        items=1_698,
        queries=1_040,
        metrics_before={"recall@10": 0.86, "mrr@10": 0.75},
        metrics_after={"recall@10": 0.87, "mrr@10": 0.74},
    ),
    items_before=1_711,
    items_after=2_000,
    new_items=290,
    gone_items=1,
    changed_items=12,
    same_item_cosine=0.73125,
    overlap_at_10=0.6125,
    new=(ListedItem(item_id="p7", text="teapot"), ListedItem(item_id="p8", text="kettle")),
    gone=(ListedItem(item_id="p9", text="typewriter"),),
    wins=(WIN, CHANGES),
    losses=(LOSS,),
)


VALUES = 10


def item(number: int) -> MappedItem:
    """More items have the value `c9` than `c8`, and so on."""
    value = next(value for value in range(VALUES) if number < (value + 1) * (value + 2) // 2)
    return MappedItem(
        item_id=f"i{number:03d}",
        text=f"<b>lamp</b> {number}",
        x=number / 10,
        y=-number / 20,
        values=(f"c{value}", "de" if number else ""),
    )


ITEMS = tuple(item(number) for number in range(55))
MOVERS = tuple(
    Mover(
        item_id=f"i{number:03d}",
        text="lamp",
        same_content=number != 1,
        kept=number // 10,
        x=0.0,
        y=0.0,
        x_before=7.0,
        y_before=1.0,
        before=("torch",),
        after=("candle", "wick"),
    )
    for number in range(12)
)
MAP = ReleaseMap(
    release=2,
    vectors=1_000,
    every=16,
    features=("category", "locale"),
    separation=(0.25, 0.5),
    items=ITEMS,
    moves=Moves(before=1, shared=50, neighbours=10, kept=0.625, movers=MOVERS),
)
