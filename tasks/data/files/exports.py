"""The commonest exports, by the columns that each has; a further one is a further entry of EXPORTS.

Names are as in the vendors' own documents, compared without case, and with `_` for a blank.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tasks.data.files.chosen_rows import Only
from tasks.data.files.facts import ColumnFacts
from tasks.data.files.formats import Format
from tasks.data.files.spelling import Spelling

_STOCK = (
    "availability is not read as deleted: an item that is out of stock is still searched for, and comes back; if such "
    "items are to leave the release, map deleted=availability, with --true out_of_stock --false in_stock"
)


class Export(NamedTuple):
    """One kind of export. The first column of a role that has a value takes it."""

    name: str
    feed: bool  # True: a feed of items; False: rows of queries
    signs: tuple[tuple[str, ...], ...]  # groups of columns; a file with all of one group is this export
    roles: Mapping[str, tuple[str, ...]]  # name in --map or `time` -> columns
    form: Format | None = None  # None: any
    only: tuple[Only, ...] = ()  # the rows that are read
    true: tuple[str, ...] = ()  # words of the column of `deleted`
    false: tuple[str, ...] = ()
    remark: str = ""
    remark_on: str = ""  # column that the remark is about


EXPORTS = (
    Export(
        "a product export of Shopify",
        feed=True,
        signs=(("Handle", "Title", "Variant SKU"), ("URL handle", "Title", "Option1 name")),
        roles={
            "id": ("Handle", "URL handle"),
            "text": ("Title",),
            "live": ("Published", "Published on online store"),
            "deleted": ("Status",),
            "time": ("Updated At",),
        },
        only=(Only("Title"),),  # further variants and images of a product are rows without one
        true=("archived", "draft", "unlisted"),
        false=("active",),
    ),
    Export(
        "a product export of WooCommerce",
        feed=True,
        signs=(("ID", "Type", "SKU", "Name", "Published"),),
        roles={"id": ("ID",), "text": ("Name",), "live": ("Published",)},
    ),
    Export(
        "a product feed of Google Merchant",
        feed=True,
        signs=(
            ("id", "title", "link", "availability"),
            ("id", "title", "link", "image_link"),
            ("id", "title", "link", "price"),
        ),
        roles={"id": ("id",), "text": ("title",)},
        remark=_STOCK,
        remark_on="availability",
    ),
    Export(
        "a product feed of Google Merchant",
        feed=True,
        form=Format.xml,
        signs=(("id", "title"),),
        roles={"id": ("id",), "text": ("title",)},
        remark=_STOCK,
        remark_on="availability",
    ),
)


class Found(NamedTuple):
    """An export that a file was recognised as, and its columns as the file spells them."""

    export: Export
    columns: Mapping[str, str]  # plain name -> column

    @property
    def only(self) -> tuple[Only, ...]:
        return tuple(Only(self.columns.get(_plain(each.column), each.column), each.values) for each in self.export.only)

    def remarks(self, columns: Sequence[ColumnFacts]) -> tuple[str, ...]:
        """Return the remark if the export has the column that it is about."""
        about = self.columns.get(self.export.remark_on)
        return (self.export.remark,) if any(each.name == about and each.common for each in columns) else ()

    def roles(self, columns: Sequence[ColumnFacts]) -> dict[str, str]:
        """Return the column of each role; a column without any value has none."""
        filled = {each.name for each in columns if each.common}
        found = {}
        for role, names in self.export.roles.items():
            those = [self.columns[_plain(name)] for name in names if self.columns.get(_plain(name)) in filled]
            if those:
                found[role] = those[0]
        return found

    def spelling(self, spelling: Spelling, roles: Mapping[str, str]) -> Spelling:
        """Return the spelling with the words of a column that is mapped as deleted."""
        if "deleted" not in roles:
            return spelling
        true, false = {*spelling.true, *self.export.true}, {*spelling.false, *self.export.false}
        return spelling.model_copy(update={"true": tuple(sorted(true)), "false": tuple(sorted(false))})


def find_export(names: Collection[str], form: Format, feed: bool) -> Found | None:
    """Return the export with these columns; None if it is none that is known.

    Args:
        names: the columns of the first records; `a.b` is the part b of a nested column a.
        feed: True if a person says that it is a feed.
    """
    columns = {_plain(name): name for name in reversed([*names])}
    for export in EXPORTS:
        if (feed and not export.feed) or export.form not in (None, form):
            continue
        if any(all(_plain(name) in columns for name in group) for group in export.signs):
            return Found(export, columns)
    return None


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_")
