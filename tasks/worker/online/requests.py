"""Bodies of requests and answers. A refusal names the fault of its request in JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field, StringConstraints, ValidationError, model_validator

from tasks.contracts.search import MOST_HITS, Hit
from tasks.foundation.records import Record
from tasks.worker.online.opened import Opened

MOST_TEXTS = 256  # in one request
MOST_CHARACTERS = 32_768  # in one text; the model cuts it far earlier
CURRENT = "current"  # the name of the serving model for clients that must name one

Text = Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")]
R = TypeVar("R", bound=Record)


class Refused(Exception):
    """A request that gets no answer: its status, a sentence, and more facts for programs."""

    def __init__(self, status: int, sentence: str, **facts: Any) -> None:
        super().__init__(sentence)
        self.status, self.facts = status, facts

    @property
    def body(self) -> dict[str, Any]:
        """The JSON, in the form that clients of OpenAI's interface know."""
        return {"error": {"message": str(self), "code": self.status, **self.facts}}


class TextWithFeatures(Record, extra="allow"):
    """A text with any of the model's features: `{"text": "lamp", "price": 9.5}`."""

    text: Text


Given = Annotated[Text | TextWithFeatures, Field(union_mode="left_to_right")]
Givens = Annotated[tuple[Given, ...], Field(min_length=1, max_length=MOST_TEXTS)]


class _Pinned(Record):
    release: int | None = Field(default=None, description="number of the release that must answer; null: any")
    model_version: str | None = Field(default=None, description="model that must answer; null: any")


class EmbedRequest(_Pinned):
    """`POST /embed`: queries or items."""

    queries: Givens | None = None
    items: Givens | None = None
    width: int | None = Field(default=None, ge=1, description="numbers of a vector, a trained width; null: all")

    @model_validator(mode="after")
    def _one_side(self) -> EmbedRequest:
        if (self.queries is None) == (self.items is None):
            raise ValueError("give either queries or items")
        return self


class SearchRequest(_Pinned):
    """`POST /search`: the items nearest to one query."""

    query: Given
    k: int = Field(default=10, ge=1, le=MOST_HITS)


class OpenAiRequest(Record, extra="ignore"):
    """`POST /v1/embeddings`, as clients of OpenAI's interface send it; the texts are queries."""

    input: Text | Annotated[tuple[Text, ...], Field(min_length=1, max_length=MOST_TEXTS)]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)


def parsed(kind: type[R], body: bytes) -> R:
    """Return the body of a request. Raises Refused, 400: names the first key that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # The location names branches of unions too, such as `constrained-str`.
        place = ".".join(str(each) for each in first["loc"] if str(each).isidentifier() or isinstance(each, int))
        raise Refused(400, f"{place}: {first['msg']}" if place else first["msg"]) from error


def entry_of(given: str | TextWithFeatures) -> str | Mapping[str, Any]:
    """Return a text, or a text with features, for an encoder."""
    return given if isinstance(given, str) else given.model_dump()


def narrowed(by: Opened, vectors: np.ndarray, width: int | None) -> np.ndarray:
    """Return vectors cut to a trained width and of unit length again. Raises Refused, 400: another width."""
    if width is None or width == by.encoder.width:
        return vectors
    if width not in by.encoder.widths:
        widths = ", ".join(str(each) for each in sorted({*by.encoder.widths, by.encoder.width}))
        raise Refused(400, f"the model {by.model_version} has no vectors of {width} numbers, but of {widths}")
    cut = vectors[:, :width]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def stamp(by: Opened) -> dict[str, Any]:
    """Return the release and the model of an answer."""
    return {"release": by.release, "model_version": by.model_version}


def embed_answer(by: Opened, vectors: np.ndarray) -> dict[str, Any]:
    return {**stamp(by), "width": vectors.shape[1], "vectors": vectors.tolist()}


def search_answer(by: Opened, hits: Sequence[Hit]) -> dict[str, Any]:
    return {**stamp(by), "hits": [hit.model_dump() for hit in hits]}


def open_ai_answer(by: Opened, vectors: np.ndarray, encoding: str) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}  # nothing is billed by tokens here
    return {"object": "list", "data": data, "model": by.model_version, "usage": usage, **stamp(by)}


def _encoded(vector: np.ndarray, encoding: str) -> Any:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if encoding == "base64" else vector.tolist()
