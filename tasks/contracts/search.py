"""Releases searched: the lines of JSON to and from the worker that holds the model, and what changed between two."""

from pydantic import Field

from tasks.foundation.records import Record

MOST_HITS = 1000


class Searchable(Record):
    """The first line of the process: it can be asked now."""

    release: int
    model_version: str
    vectors: int
    seconds: float = Field(description="to load model and vectors")


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
    """One line of the process for each question; `hits` are the best of all vectors of the release, best first."""

    hits: tuple[Hit, ...]
    seconds: float = Field(description="to embed the query and to compare it with every vector")


class ListedItem(Record):
    """One item of a catalogue."""

    item_id: str
    text: str


class QueryChange(Record):
    """One holdout query with the best hits of both releases. A rank counts from 1, among all items of the release."""

    query: str
    item_id: str = Field(description="the item that belongs to the query")
    text: str = Field(description="of that item")
    rank_before: int | None = Field(description="null: the earlier release has no vector of the item")
    rank_after: int | None = Field(description="null: the later release has no vector of the item")
    before: tuple[Hit, ...] = Field(description="best first")
    after: tuple[Hit, ...] = Field(description="best first")


class SharedSearch(Record):
    """Two models apart from their catalogues: searched among items that both releases hold with equal content."""

    items: int
    queries: int = Field(description="whose own item is among them")
    metrics_before: dict[str, float] = Field(description="ranking metrics over these queries, by the earlier release")
    metrics_after: dict[str, float]


class Changes(Record):
    """The later release compared with the earlier one: the same holdout queries over both whole catalogues."""

    before: int = Field(description="number of the earlier release")
    after: int | None = Field(description="number of the later release; null: compared before it was published")
    queries: int = Field(description="holdout queries that both were searched with; none of them was trained on")
    metrics_before: dict[str, float] = Field(description="ranking metrics over all vectors of the earlier release")
    metrics_after: dict[str, float]
    shared: SharedSearch = Field(description="the same of the models alone")
    items_before: int
    items_after: int
    new_items: int = Field(description="in the later release alone")
    gone_items: int = Field(description="in the earlier release alone")
    changed_items: int = Field(description="in both, with another text or feature")
    same_item_cosine: float | None = Field(
        description="mean over a sample of items in both; null: different widths, or no item is in both"
    )
    overlap_at_10: float | None = Field(description="mean share of the ten best hits that both have; null: no query")
    new: tuple[ListedItem, ...] = Field(description="some of the new items")
    gone: tuple[ListedItem, ...] = Field(description="some of the gone items")
    wins: tuple[QueryChange, ...] = Field(description="the queries whose item gained most, the largest gain first")
    losses: tuple[QueryChange, ...] = Field(description="the queries whose item lost most, the largest loss first")
