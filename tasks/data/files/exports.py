"""The commonest exports, by the columns that each has; a further one is a further entry of EXPORTS.

Names are as in the vendors' own documents, compared without case, and with `_` for a blank.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tasks.data.files.facts import ColumnFacts
from tasks.data.files.formats import Format
from tasks.data.files.shaping import Only
from tasks.data.files.spelling import Spelling

_DUMPED = "_source."  # prefix of a record in the hits that elasticdump writes
_CHOSEN_GA4 = ("select_item", "view_item", "add_to_cart", "add_to_wishlist", "begin_checkout", "purchase")
_CHOSEN_UBI = (
    "click",
    "click_through",
    "item_click",
    "product_click",
    "view",
    "watch",
    "add_to_cart",
    "purchase",
    "buy",
)
_GRADED = (
    "esci_label is a grade from E (exact) to I (irrelevant): millrace init writes the settings by which no bad grade "
    "is a hit; without them all rows are trained as hits"
)
_SHOWN = "the hits of a query were shown, and no one chose them; look at the events (ubi_events), which tell the clicks"
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
    explode: str = ""  # column of lists that has a row for each value
    by: str = ""  # column that finds the query in another file, if this one has none
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
    Export(
        "an export of GA4 to BigQuery",
        feed=False,
        signs=(("event_name", "event_params", "items"),),
        roles={
            "query": ("event_params.search_term",),
            "item": ("items.item_name",),
            "item_id": ("items.item_id",),
            "time": ("event_timestamp",),
        },
        explode="items",
        only=(Only("event_name", _CHOSEN_GA4), Only("event_params.search_term"), Only("items.item_id")),
    ),
    Export(
        "the events of OpenSearch UBI",
        feed=False,
        signs=(("action_name", "query_id", "event_attributes"),),
        roles={
            "query": ("user_query",),
            "item_id": ("event_attributes.object.object_id",),
            "time": ("timestamp", "@timestamp"),
        },
        by="query_id",
        only=(Only("action_name", _CHOSEN_UBI), Only("user_query"), Only("event_attributes.object.object_id")),
    ),
    Export(
        "the queries of OpenSearch UBI",
        feed=False,
        signs=(("query_id", "user_query", "query_response_hit_ids"),),
        roles={"query": ("user_query",), "item_id": ("query_response_hit_ids",), "time": ("timestamp", "@timestamp")},
        explode="query_response_hit_ids",
        only=(Only("user_query"), Only("query_response_hit_ids")),
        remark=_SHOWN,
        remark_on="query_response_hit_ids",
    ),
    Export(
        "the events of Algolia Insights",
        feed=False,
        signs=(("eventType", "objectIDs", "userToken"), ("eventType", "objectIDs", "queryID")),
        roles={"query": ("query",), "item_id": ("objectIDs",), "time": ("timestamp",)},
        explode="objectIDs",
        by="queryID",
        only=(Only("eventType", ("click", "conversion")), Only("query"), Only("objectIDs")),
    ),
    Export(
        "the examples of Amazon ESCI",
        feed=False,
        signs=(("query", "product_id", "esci_label"),),
        roles={"id": ("example_id",), "query": ("query",), "item": ("product_title",), "item_id": ("product_id",)},
        remark=_GRADED,
        remark_on="esci_label",
    ),
    Export(
        "the products of Amazon ESCI",
        feed=True,
        signs=(("product_id", "product_title", "product_locale"),),
        roles={"id": ("product_id",), "text": ("product_title",)},
        only=(Only("product_title"),),
    ),
)


class Found(NamedTuple):
    """An export that a file was recognised as, and its columns as the file spells them."""

    export: Export
    columns: Mapping[str, str]  # plain name, without the prefix -> column
    prefix: str

    @property
    def only(self) -> tuple[Only, ...]:
        return tuple(Only(self.column(each.column), each.values) for each in self.export.only)

    @property
    def by(self) -> str:
        """The column that finds the query in another file."""
        return self.column(self.export.by)

    @property
    def needs_lookup(self) -> bool:
        """True if the texts of the queries are in another file."""
        there = {*self.columns.values()}
        return bool(self.export.by) and self.query not in there and self.by in there

    @property
    def query(self) -> str:
        """The column of the query."""
        return self.column(self.export.roles["query"][0])

    def column(self, name: str) -> str:
        """Return a column as the file spells it; a part of a list has its name after the list's."""
        plain = _plain(name)
        root, _, part = plain.partition(".")
        return self.columns.get(plain) or (
            f"{self.columns[root]}.{part}" if part and root in self.columns else self.prefix + name
        )

    def remarks(self, columns: Sequence[ColumnFacts]) -> tuple[str, ...]:
        """Return the remark if the export has the column that it is about."""
        about = self.columns.get(self.export.remark_on)
        return (self.export.remark,) if any(each.name == about and each.common for each in columns) else ()

    def roles(self, columns: Sequence[ColumnFacts]) -> dict[str, str]:
        """Return the column of each role; a column without any value has none."""
        filled = {each.name for each in columns if each.common}
        found = {}
        for role, names in self.export.roles.items():
            column = next((self.column(name) for name in names if self.column(name) in filled), None)
            if column is not None:
                found[role] = column
        return found

    def spelling(self, spelling: Spelling, roles: Mapping[str, str]) -> Spelling:
        """Return the spelling with the words of a column that is mapped as deleted."""
        if "deleted" not in roles:
            return spelling
        true, false = {*spelling.true, *self.export.true}, {*spelling.false, *self.export.false}
        return spelling.model_copy(update={"true": tuple(sorted(true)), "false": tuple(sorted(false))})


def find_export(names: Collection[str], form: Format, feed: bool) -> Found | None:
    """Return the export with these columns; None if no export has them.

    Args:
        names: the columns of the first records; `a.b` is the part b of a nested column a.
        feed: True if a person says that it is a feed.
    """
    prefix = _DUMPED if any(name.startswith(_DUMPED) for name in names) else ""
    columns = {_plain(name.removeprefix(prefix)): name for name in reversed([*names])}
    for name in names:
        for end in (place for place, sign in enumerate(name) if sign == "."):
            columns.setdefault(_plain(name[:end].removeprefix(prefix)), name[:end])  # a nested column
    for export in EXPORTS:
        if (feed and not export.feed) or export.form not in (None, form):
            continue
        if any(all(_plain(name) in columns for name in group) for group in export.signs):
            return Found(export, columns, prefix)
    return None


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_")
