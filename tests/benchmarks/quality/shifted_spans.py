"""An invented shop whose customers, from one span on, ask for half of its items in words that no span had before."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tasks.data.rows import CORE

THINGS, COLOURS, STUFFS = 40, 6, 4  # every combination is an item: 960
IN_SEASON = 0.5  # of the things, those that a span is about: others are forgotten meanwhile, or not
ASKED = 500  # queries of each group that are measured
WRONG = 0.2  # of the rows are about another item, as clicks are
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_FILLERS = ("want", "cheap", "best", "for", "my", "new", "good", "please")
GROUPS = ("new", "old", "rest")  # the half that changes, in its new words and in its old ones; the other half


class Words(NamedTuple):
    """What things, colours and stuffs are called."""

    things: Sequence[str]
    colours: Sequence[str]
    stuffs: Sequence[str]


class Shop:
    """Items, what they are called, and two vocabularies of queries; the same seed gives the same shop."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._taken: set[str] = set()
        self._called, self._old, self._new = self._words(), self._words(), self._words()
        self._items = [(t, c, s) for t in range(THINGS) for c in range(COLOURS) for s in range(STUFFS)]
        self._changes = [thing % 2 == 0 for thing, _, _ in self._items]

    def span(self, rows: int, shifted: bool) -> pa.Table:
        """Return the rows of one more span."""
        season = set(self._random.sample(range(THINGS), round(IN_SEASON * THINGS)))
        chosen = self._random.choices([i for i, (thing, _, _) in enumerate(self._items) if thing in season], k=rows)
        queries = [self._query(item, shifted and self._changes[item]) for item in chosen]
        asked = [self._random.randrange(len(self._items)) if self._random.random() < WRONG else i for i in chosen]
        return self._table(queries, asked)

    def measured(self) -> tuple[pa.Table, tuple[str, ...]]:
        """Return queries that no span has, of all groups, and the group of each."""
        halves = {change: [i for i, each in enumerate(self._changes) if each is change] for change in (True, False)}
        queries, items, groups = [], [], []
        for group in GROUPS:
            for item in self._random.choices(halves[group != "rest"], k=ASKED):
                queries.append(self._query(item, group == "new"))
                items.append(item)
                groups.append(group)
        return self._table(queries, items), tuple(groups)

    def catalogue(self) -> pa.Table:
        """Return one row for each item."""
        every = range(len(self._items))
        return self._table([self._query(item, False) for item in every], list(every))

    def _query(self, item: int, shifted: bool) -> str:
        words = self._new if shifted else self._old
        thing, colour, stuff = self._items[item]
        said = [words.things[thing], words.colours[colour], words.stuffs[stuff]]
        said += self._random.sample(_FILLERS, self._random.randrange(3))
        self._random.shuffle(said)
        return " ".join(said)

    def _table(self, queries: Sequence[str], items: Sequence[int]) -> pa.Table:
        called = [self._items[item] for item in items]
        texts = [f"{self._called.colours[c]} {self._called.stuffs[s]} {self._called.things[t]}" for t, c, s in called]
        return pa.table(
            {
                "row_id": [f"row-{self._random.getrandbits(64):016x}" for _ in items],
                "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * len(items), CORE["time"]),
                "query": queries,
                "item": texts,
                "item_id": [f"item-{item}" for item in items],
                "label": pa.array([5.0] * len(items)),
            }
        )

    def _words(self) -> Words:
        return Words(*(tuple(self._word() for _ in range(count)) for count in (THINGS, COLOURS, STUFFS)))

    def _word(self) -> str:
        word = "".join(self._random.choices(_SYLLABLES, k=3))
        if word in self._taken:
            return self._word()
        self._taken.add(word)
        return word
