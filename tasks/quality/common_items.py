"""The items that two models are compared among: the part of the challenger's catalogue that the other one holds too.

Alone, since it needs no numpy, which most files of this folder load.
"""

from typing import NamedTuple


class CommonItems(NamedTuple):
    """Numbers of items: with an id that both models hold, and of the challenger's catalogue."""

    items: int
    catalogue: int

    @property
    def share(self) -> float:
        return self.items / self.catalogue if self.catalogue else 0.0

    @property
    def words(self) -> str:
        """As in `among the 998,210 items that both hold, 99.8 % of the catalogue`."""
        return f"among the {self.items:,} items that both hold, {_percent(self.share)} of the catalogue"

    def few(self, least: float) -> bool:
        """Return True if these are less than a share of the catalogue, or none."""
        return not self.items or self.share < least

    def too_few(self, least: float, other: str) -> str:
        """Return the reason why so few items can't decide, with the way out; empty if they can.

        Args:
            least: share of the catalogue, the setting evaluate.min_shared.
            other: the model that is compared with.
        """
        if not self.few(least):
            return ""
        return (
            f"the {other} holds {self.items:,} of the catalogue's {self.catalogue:,} items by their ids, "
            f"{_percent(self.share)}, and evaluate.min_shared is {_percent(least)}. If ids were written anew, ingest "
            "the span with the ids of before. If so many items are new, the next run compares again: the refresh of "
            "the champion embeds them before. Or let it pass: millrace gate --run KEY --override NAME --reason TEXT"
        )


def _percent(share: float) -> str:
    """Return a share in percent with one decimal, never rounded up to 100."""
    return f"{int(share * 1000) / 10:g} %"
