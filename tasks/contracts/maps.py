"""The map of a release: a sample of the items in two dimensions, with the items whose neighbours changed most.

Alone, since no run needs it.
"""

from pydantic import Field

from tasks.foundation.records import Record


class MappedItem(Record):
    """One item of the sample."""

    item_id: str
    text: str = Field(description="its text, shortened")
    x: float
    y: float
    values: tuple[str, ...] = Field(description="its features, in the order of `ReleaseMap.features`; empty: none")


class Mover(Record):
    """An item whose nearest neighbours changed from an earlier release to this one."""

    item_id: str
    text: str = Field(description="its text in this release, shortened")
    same_content: bool = Field(description="true: text and features are as in the earlier release")
    kept: int = Field(description="neighbours that it has in both releases")
    x: float
    y: float
    x_before: float = Field(description="middle of the places that its earlier neighbours have now")
    y_before: float
    before: tuple[str, ...] = Field(description="texts of the nearest of the lost neighbours, nearest first")
    after: tuple[str, ...] = Field(description="texts of the nearest of the new neighbours, nearest first")


class Moves(Record):
    """The comparison with an earlier release, over the sampled items that both hold."""

    before: int = Field(description="number of the earlier release")
    shared: int = Field(description="sampled items that both releases hold")
    neighbours: int = Field(description="neighbours compared for each item, among these")
    kept: float | None = Field(description="mean share of the neighbours that are the same; null: fewer than two items")
    movers: tuple[Mover, ...] = Field(description="items that kept fewest, the ones that turned most first")


class ReleaseMap(Record):
    """The line that the map's worker prints."""

    release: int
    vectors: int = Field(description="vectors of the release")
    every: int = Field(description="items whose hash is a multiple of this are in the sample, as in partition_of")
    features: tuple[str, ...] = Field(description="names of the items' categorical features")
    separation: tuple[float | None, ...] = Field(
        description="neighbours with the same value, for each feature: 0 as by chance, 1 all; null: fewer than "
        "two values"
    )
    items: tuple[MappedItem, ...] = Field(description="the sample, by item id")
    moves: Moves | None = Field(description="null: no earlier release was given")
