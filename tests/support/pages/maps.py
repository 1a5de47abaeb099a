"""The map of release 2: made up, with ten values of a feature, the frequent ones last, and movers since release 1."""

from __future__ import annotations

from tasks.contracts.maps import MappedItem, Mover, Moves, ReleaseMap

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
FOUND = ReleaseMap(
    release=2,
    vectors=1_000,
    every=16,
    features=("category", "locale"),
    separation=(0.25, 0.5),
    items=ITEMS,
    moves=Moves(before=1, shared=50, neighbours=10, kept=0.625, movers=MOVERS),
)
