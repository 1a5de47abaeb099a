"""The labels of a first log: words of events, and columns that nothing can be learnt from."""

from __future__ import annotations

from typing import Literal

import pytest

from tasks.contracts.profiles import Shared
from tasks.data.files.facts import ColumnFacts, SourceFacts
from tasks.first_hour.labels import Labels, first_labels


def labels_of(
    values: dict[str, float],
    name: str = "event",
    role: str | None = None,
    queries: int = 1000,
    kind: Literal["text", "number"] = "text",
) -> Labels:
    """The labels of a log of `queries` queries, with one more column: its values by their shares."""
    column = ColumnFacts(
        name=name, type="number" if role else kind, suggests=None, nulls=0, distinct=len(values), lengths=None,
        languages=(), common=tuple(Shared(value=value, share=share) for value, share in values.items()), ids=False,
        odd=None, role=role,
    )  # fmt: skip
    asked = column.model_copy(update={"name": "q", "type": "text", "role": "query", "distinct": queries, "common": ()})
    return first_labels(
        SourceFacts(
            source="log.csv", feed=False, format="csv", delimiter="comma", files=1,
            rows=1000, sampled=1000, first=None, last=None,
            columns=(asked, column), mapping={}, time_column=None, span="week", problems=(), command="",
        )
    )  # fmt: skip


def events(labels: Labels) -> dict[str, dict[str, float]]:
    return {key: value["values"] for key, value, _ in labels.validate if key == "events"}.get("events", {})


def test_a_view_is_a_hit_only_in_a_log_without_clicks() -> None:
    assert events(labels_of({"view": 0.9, "click": 0.1}))["view"] == {"label": 0}
    shop = labels_of({"view": 0.9, "addtocart": 0.06, "transaction": 0.04})
    assert not shop.positives_only
    assert events(shop) == {"view": {}, "addtocart": {"weight": 2}, "transaction": {"weight": 5}}


def test_an_unknown_event_gets_no_label_and_is_named() -> None:
    labels = labels_of({"impression": 0.7, "click": 0.2, "hover": 0.1}, name="action")
    assert events(labels)["hover"] == {}
    assert "give hover a label" in labels.validate[0][2]
    assert labels_of({"impression": 0.7, "hover": 0.3}, name="mood") == Labels()  # no name of an event


@pytest.mark.parametrize("values", [{"1": 1.0}, {"0.13": 0.01, "0.27": 0.01}, {"low": 0.5, "high": 0.5}])
def test_a_label_without_grades_is_left_out(values: dict[str, float]) -> None:
    labels = labels_of(values, name="label", role="label")
    assert labels.without_label
    assert labels.classification is None


def test_grades_from_zero_on_are_parted_in_the_middle() -> None:
    labels = labels_of({"0": 0.5, "1": 0.2, "2": 0.2, "3": 0.095, "70": 0.005}, name="grade", role="label")
    assert labels.positives_only
    assert labels.classification is not None
    assert (labels.classification["negative_max"], labels.classification["positive_min"]) == (1, 2)
    assert round(labels.positive, 2) == 0.3


@pytest.mark.parametrize(
    ("name", "queries", "positives_only"),
    [("grade", 1000, True), ("relevance", 128, True), ("rating", 128, True), ("rating", 1000, False)],
)
def test_bad_grades_are_no_hits_but_low_ratings_of_reviews_are(name: str, queries: int, positives_only: bool) -> None:
    """A query with several ratings was judged by raters; a review with one star is about its item all the same."""
    labels = labels_of({"4": 0.63, "3": 0.16, "2": 0.14, "1": 0.07}, name=name, role="label", queries=queries)
    assert labels.positives_only == positives_only
    assert labels.classification is not None
    assert (labels.classification["negative_max"], labels.classification["positive_min"]) == (2, 3)
    assert round(labels.positive, 2) == (0.79 if positives_only else 1.0)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ({"E": 0.5, "S": 0.2, "C": 0.1, "I": 0.2}, {"E": 1, "S": None, "C": None, "I": 0}),
        ({"Exact": 0.5, "Partial": 0.3, "Irrelevant": 0.2}, {"Exact": 1, "Partial": None, "Irrelevant": 0}),
    ],
)
def test_grades_in_words_become_labels_too(values: dict[str, float], labels: dict[str, int | None]) -> None:
    found = labels_of(values, name="esci_label")
    assert {word: each.get("label") for word, each in events(found).items()} == labels
    assert found.positives_only
    assert found.positive == 0.5
    assert labels_of({"e": 0.5, "z": 0.5}, name="letter") == Labels()


def test_a_label_that_gives_no_grades_is_named() -> None:
    assert "such as 0.13" in labels_of({"0.13": 0.01, "7": 0.01}, "score", "label").unread
    assert labels_of({"1": 1.0}, "click", "label").unread == ""
    many = {"0.13": 0.001, "7": 0.001}
    assert "'score' has values" in labels_of(many, "score", kind="number").unread, "too many values for a label"
    assert labels_of(many, "price", kind="number").unread == ""
