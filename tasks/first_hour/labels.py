"""The meaning of a first log's labels and events: the rows that are pairs, the classes, the weights."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.data.files.facts import FALSE_WORDS, TRUE_WORDS, ColumnFacts, SourceFacts
from tasks.data.files.names import named_like

_SHOWN = frozenset(["impression", "impressions", "shown", "show", "seen", "display", "exposure", "anzeige", "gezeigt"])
_VIEW = frozenset(["view", "viewed", "pageview", "ansicht"])  # shown, or opened in a log without clicks
_WEIGHTS = {
    1: "click clicked clicks open opened select selected klick geklickt",
    2: "cart add_to_cart addtocart basket add_to_basket wishlist favourite favorite like warenkorb merkzettel",
    5: "purchase purchased buy bought order ordered transaction sale checkout conversion kauf gekauft bestellung",
}
_DONE = {word: weight for weight, words in _WEIGHTS.items() for word in words.split()}
_NAMED = {
    "event",
    "event_type",
    "eventtype",
    "event_name",
    "action",
    "action_type",
    "interaction",
    "ereignis",
    "aktion",
}
# Relevance in words, and as in Amazon's ESCI. None: partly relevant, which is neither a hit nor a miss.
_GRADES: dict[str, int | None] = {
    **dict.fromkeys(["exact", "relevant", "highly_relevant", "perfect", "excellent", "good"], 1),
    **dict.fromkeys(["partial", "partially_relevant", "somewhat_relevant", "substitute", "complement", "fair"], None),
    **dict.fromkeys(["irrelevant", "not_relevant", "nonrelevant", "non_relevant", "bad"], 0),
}
_ESCI = {"e": 1, "s": None, "c": None, "i": 0}
# Ratings say if people like an item, not if it answers a query, unless raters gave several to a query.
_RATINGS = frozenset(["rating", "ratings", "stars", "star", "overall", "sterne", "bewertung"])
_REPEATED = 0.5  # distinct queries, as a share of the rows, below which queries have several rated items
_MOST_EVENTS = 12  # the commonest values that a first look returns
_SELDOM = 0.01  # share of a label that is taken for a mistake
_SOLVED = {"refit_rows": 20_000}  # solved at the end, with a threshold: steps at an encoder's rate teach a head little


class Labels(NamedTuple):
    """The settings of labels, and their share of positive rows."""

    positive: float = 1.0  # share of the rows
    positives_only: bool = False
    classification: dict[str, Any] | None = None
    weighted: bool = False
    validate: Sequence[tuple[str, Any, str]] = ()  # key below validate, value, reason
    columns: Sequence[str] = ()  # sources of the labels
    without_label: bool = False  # no label is mapped: nothing would read it, or events give it
    unread: str = ""  # sentence about a label with several values that no settings were found for


def first_labels(log: SourceFacts) -> Labels:
    """Return the settings for a log with events, with a label, or with neither."""
    event = next((each for each in log.columns if each.role in (None, "label") and _is_event(each)), None)
    if event is not None:
        return _of_events(event)
    label = next((each for each in log.columns if each.role == "label"), None)
    if label is not None:
        return _of_label(label, _are_opinions(label, log))
    free = [each for each in log.columns if each.role is None]
    score = next((each for each in free if each.type == "number" and named_like(each.name, "label")), None)
    graded = ((each, words) for each in free if (words := _grade_words(each)))
    return next((_of_grades(column, words) for column, words in graded), Labels(unread=_unread(score) if score else ""))


def _are_opinions(label: ColumnFacts, log: SourceFacts) -> bool:
    """Return True for ratings of items, as in reviews: a low one is about its item all the same."""
    query = next((each for each in log.columns if each.role == "query"), None)
    repeats = query is not None and query.distinct < _REPEATED * (log.sampled - min(query.nulls, log.sampled))
    return bool(_RATINGS & {*_word(label.name).split("_")}) and not repeats


def _grade_words(column: ColumnFacts) -> dict[str, int | None]:
    """Return each value of a column of grades in words, with its label; empty for another column."""
    if column.type != "text" or column.suggests is not None or column.distinct != len(column.common):
        return {}
    for known in (_GRADES, _ESCI):
        found = {each.value: known[_word(each.value)] for each in column.common if _word(each.value) in known}
        if len(found) == len(column.common) > 1 and 1 in found.values():
            return found
    return {}


def _of_grades(column: ColumnFacts, words: dict[str, int | None]) -> Labels:
    values = {word: {} if label is None else {"label": label} for word, label in words.items()}
    positive = sum(each.share for each in column.common if words[each.value] == 1)
    reason = "1: relevant, a hit; 0: irrelevant; without a label: partly relevant, neither"
    head = {"weight": 0.2, "input": "pair", "negative_max": 0, "positive_min": 1} | _SOLVED
    table = [("events", {"column": column.name, "values": values}, reason)]
    return Labels(positive, True, head, False, table, (column.name,), without_label=True)


def _is_event(column: ColumnFacts) -> bool:
    words = [_word(each.value) for each in column.common]
    known = [word in _DONE or word in _SHOWN | _VIEW for word in words]
    plain = column.type == "text" and column.suggests is None and column.distinct == len(words) <= _MOST_EVENTS
    return plain and len(words) > 1 and (all(known) or (any(known) and _word(column.name) in _NAMED))


def _of_events(column: ColumnFacts) -> Labels:
    clicks = any(_word(each.value) in _DONE and _DONE[_word(each.value)] == 1 for each in column.common)
    values: dict[str, dict[str, int]] = {}
    positive = 0.0
    for each in column.common:
        word = _word(each.value)
        weight = _DONE.get(word, 1 if word in _VIEW and not clicks else 0)
        unknown = word not in _DONE and word not in _SHOWN | _VIEW
        values[each.value] = {} if unknown else {"label": int(weight > 0)} | ({"weight": weight} if weight > 1 else {})
        positive += each.share * (weight > 0)
    others = [name for name, value in values.items() if not value]
    weighted = any("weight" in value for value in values.values())
    if not 0 < round(positive, 3) < 1:  # no second class: labels would teach nothing
        values = {
            name: {key: number for key, number in each.items() if key != "label"} for name, each in values.items()
        }
        table = [("events", {"column": column.name, "values": values}, "weights by event")] if weighted else []
        return Labels(weighted=weighted, validate=table, columns=(column.name,), without_label=True)
    reason = "1: the item was wanted; 0: shown, and not wanted; rows with another event are set apart"
    if others:
        reason = f"{reason}; give {', '.join(others)} a label, else they teach nothing"
    head = {"weight": 0.2, "input": "pair", "negative_max": 0, "positive_min": 1} | _SOLVED
    table = [("events", {"column": column.name, "values": values}, reason)]
    return Labels(positive, True, head, weighted, table, (column.name,), without_label=True)


def _of_label(column: ColumnFacts, opinions: bool) -> Labels:
    """Return the settings for a label. Rows of bad grades are no pairs, unless the grades are opinions from 1 on."""
    usual = [each for each in column.common if each.share >= _SELDOM]
    grades = {number: each.share for each in usual if (number := _number(each.value)) is not None}
    if len(grades) < 2 or sum(grades.values()) < 1 - _SELDOM * _MOST_EVENTS / 2:
        return Labels(columns=(column.name,), without_label=True, unread=_unread(column))
    low, high = min(grades), max(grades)
    negative_max = max(grade for grade in grades if grade < (low + high) / 2)
    positive_min = min(grade for grade in grades if grade > (low + high) / 2)
    head = {"weight": 0.2, "input": "pair", "negative_max": negative_max, "positive_min": positive_min} | _SOLVED
    limits = [("label_min", low, f"the labels of {column.name}; rows with another are set apart"),
              ("label_max", high, "likewise")]  # fmt: skip
    share = sum(share for grade, share in grades.items() if grade >= positive_min) / sum(grades.values())
    graded = low <= 0 or not opinions
    return Labels(share if graded else 1.0, graded, head, False, limits, (column.name,))


def _unread(column: ColumnFacts) -> str:
    if column.distinct < 2:
        return ""
    values = ", ".join(each.value for each in column.common[:3])
    return (
        f"the label {column.name!r} has values such as {values}, which are no few grades: it is left out, and all rows "
        "are hits. If those of low values are none, map it as label, and set heads.classification (negative_max, "
        "positive_min) and heads.contrastive.positives_only=true"
    )


def _number(text: str) -> float | None:
    word = text.strip().casefold()
    if word in TRUE_WORDS or word == "true":
        return 1.0
    if word in FALSE_WORDS or word == "false":
        return 0.0
    try:
        return float(word.replace(",", "."))
    except ValueError:
        return None


def _word(text: str) -> str:
    return re.sub(r"[\s-]+", "_", text.strip().casefold())
