"""Search in releases: questions and answers as JSON lines, and two releases compared."""

from pydantic import Field

from tasks.foundation.records import Record

MOST_HITS = 1000


class Searchable(Record):
    """The first line of the process: ready for questions."""

    release: int
    model_version: str
    vectors: int
    seconds: float = Field(description="seconds to load model and vectors")


class Question(Record):
    """One line to the process."""

    text: str
    k: int = Field(ge=1, le=MOST_HITS)


class Hit(Record):
    """One item. `score` is the cosine of query and item."""

    score: float
    item_id: str
    text: str


class Answer(Record):
    """The process's line for one question; `hits` are the best of all the release's vectors, best first."""

    hits: tuple[Hit, ...]
    seconds: float = Field(description="seconds to embed the query and to compare it with every vector")


class MeasuredExport(Record):
    """A form of a released model for another runtime, measured against the release by a process of its own."""

    kind: str = Field(description="name in release.exports")
    refused: str | None = Field(default=None, description="reason; null: it is in the model's folder")
    bytes: int | None = Field(default=None, description="size of its graph's files; null: none could be made")
    min_cosine: float | None = Field(
        default=None, description="lowest cosine with the released vectors, of the probed items and queries"
    )
    recall_at_10: float | None = Field(
        default=None, description="recall@10 of the holdout queries that it embeds; null: there are none"
    )
    p50_ms: float | None = Field(default=None, description="median milliseconds for one query, on one core")
    p99_ms: float | None = Field(default=None, description="99th percentile of the same")


class NarrowRecall(Record):
    """Recall@10 of the holdout queries by a target with narrow vectors, and by an exact search of the release's.

    Either ignores items that are as relevant as a query's own, as evaluate does.
    """

    queries: int = Field(description="number of holdout queries")
    recall_at_10: float = Field(description="recall by the target's own search")
    whole: float = Field(description="recall by an exact search of the release's vectors")
    loss_low: float = Field(description="lower bound of the loss, whole - recall_at_10, of an interval of 95 %")
    loss_high: float = Field(description="upper bound of the same")

    @property
    def loss(self) -> float:
        """The recall@10 that the target loses; negative: it gains."""
        return self.whole - self.recall_at_10


class ListedItem(Record):
    """One item of a catalogue."""

    item_id: str
    text: str


class QueryChange(Record):
    """One holdout query with the best hits of both releases.

    A rank counts from 1, among all items of the release but those that are as relevant as the query's own.
    """

    query: str
    item_id: str = Field(description="id of the query's own item")
    text: str = Field(description="text of that item")
    rank_before: int | None = Field(description="rank in the earlier release; null: it has no vector of the item")
    rank_after: int | None = Field(description="rank in the later release; null: it has no vector of the item")
    before: tuple[Hit, ...] = Field(description="hits of the earlier release, best first")
    after: tuple[Hit, ...] = Field(description="hits of the later release, best first")


class SharedSearch(Record):
    """Two releases compared by the vectors that they serve, among the items whose ids both hold."""

    items: int
    queries: int = Field(description="queries whose own item is among these")
    metrics_before: dict[str, float] = Field(description="ranking metrics over these queries, by the earlier release")
    metrics_after: dict[str, float] = Field(description="ranking metrics over these queries, by the later release")


class Changes(Record):
    """The later release compared with the earlier one: the same holdout queries over both whole catalogues."""

    before: int = Field(description="number of the earlier release")
    after: int | None = Field(description="number of the later release; null: compared before its publication")
    same_model: bool = Field(
        default=False, description="true: a refresh of few items, for which no query was searched again"
    )
    queries: int = Field(description="holdout queries about items of the later release; none of them was trained on")
    metrics_before: dict[str, float] = Field(description="ranking metrics over all vectors of the earlier release")
    metrics_after: dict[str, float] = Field(description="ranking metrics over all vectors of the later release")
    shared: SharedSearch = Field(description="comparison among the items that both releases hold")
    items_before: int
    items_after: int
    new_items: int = Field(description="items in the later release alone")
    gone_items: int = Field(description="items in the earlier release alone")
    changed_items: int = Field(description="items in both, with another text or feature")
    same_item_cosine: float | None = Field(
        description="mean cosine of an item's two vectors, over a sample; null: different widths, or no item in both"
    )
    overlap_at_10: float | None = Field(description="mean share of the ten best hits that both have; null: no query")
    new: tuple[ListedItem, ...] = Field(description="sample of the new items")
    gone: tuple[ListedItem, ...] = Field(description="sample of the gone items")
    wins: tuple[QueryChange, ...] = Field(
        description="queries with the largest rise in rank of an item that both releases hold, largest first"
    )
    losses: tuple[QueryChange, ...] = Field(
        description="queries with the largest drop in rank of such an item, largest first"
    )
