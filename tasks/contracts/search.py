"""What passes between a command that searches a release and the worker that holds its model: lines of JSON."""

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
