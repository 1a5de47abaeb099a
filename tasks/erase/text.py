"""Records and pages without the words and texts of erased rows, and with the new checksums and counts.

A value stands in a record as a field of its own (an item id, a query, a text), which goes with its object out of a
list, or inside a sentence, where a mark takes its place. Keys of the workspace and settings stay as they are.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from tasks.contracts.runs import Release
from tasks.contracts.workspace import RELEASE, kind_of
from tasks.erase.records import Journal
from tasks.erase.wanted import GONE, Wanted

_DATA = frozenset({"item_id", "item", "query", "text", "value", "label", "row_id"})  # fields that hold a cell
_WORD = re.compile(r"[^\s\"'<>,;()\[\]{}:=`]+")
_SHORTEST_TEXT = 12  # characters of a text that is looked for inside sentences


class Redaction:
    """The words and texts that go, found in a line at once."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._words = wanted.words
        self._cells = wanted.forms | wanted.texts
        texts = sorted((each for each in wanted.texts if len(each) >= _SHORTEST_TEXT), key=len, reverse=True)
        quoted = {f"{mark}{form}{mark}" for form in wanted.forms for mark in "'\""}
        inside = wanted.forms if wanted.value in self._words else ()
        self._inside = re.compile("|".join(map(re.escape, [*texts, *quoted]))) if texts or quoted else None
        edges = r"(?<![\w-])(?:{})(?![\w-])"
        self._value = re.compile(edges.format("|".join(map(re.escape, inside)))) if inside else None
        self._page = self._of_page(texts)

    def is_cell(self, name: str, value: object) -> bool:
        """Return True if a field of a record is the erased value, or a text of an erased row."""
        return isinstance(value, str) and (name in _DATA or name == self._wanted.column) and value in self._cells

    def sentence(self, text: str) -> str:
        """Return a sentence with a mark in the place of each word and text that goes."""
        if self._inside is not None:
            text = self._inside.sub(GONE, text)
        if self._value is not None:
            text = self._value.sub(GONE, text)
        return _WORD.sub(lambda found: self._unless(found[0]), text)

    def page(self, text: str) -> str:
        """Return a page of HTML likewise; a cell of a table that is the value alone, however short it is."""
        return self.sentence(self._page.sub(lambda found: found[0].replace(found[1], GONE), text))

    def holds(self, data: bytes) -> bool:
        """Return True if bytes hold the value, in UTF-8, as a word that means nothing else."""
        return any(form.encode() in data for form in (self._wanted.forms if self._value is not None else ()))

    def _unless(self, word: str) -> str:
        bare = word.strip(".!?")
        return word.replace(bare, GONE) if bare in self._words else word

    def _of_page(self, texts: list[str]) -> re.Pattern[str]:
        cells = {html.escape(each) for each in [*self._wanted.forms, *texts]}
        cells |= {html.escape(each, quote=False) for each in texts}
        either = "|".join(map(re.escape, sorted(cells, key=len, reverse=True)))
        return re.compile(rf"(?<=[>\"])\s*({either})\s*(?=[<\"])")


def changed_record(key: str, raw: bytes, journal: Journal, redaction: Redaction) -> bytes | None:
    """Return the bytes of a record after the change; None if none of it changes, or it is no JSON."""
    try:
        before = json.loads(raw)
    except ValueError:
        return None
    after = _walked(before, "", journal, redaction)
    if after == before:
        return None
    if kind_of(key)[0] is RELEASE:  # its last key vouches for its bytes
        after.pop("sha256", None)
        return Release.model_validate_json(json.dumps(after)).to_json()
    return (json.dumps(after, indent=2, ensure_ascii=False) + "\n").encode()


def _walked(value: Any, name: str, journal: Journal, redaction: Redaction) -> Any:
    match value:
        case dict():
            return _object(value, name, journal, redaction)
        case list():
            kept = [each for each in value if not _goes(each, redaction)]
            return [_walked(each, name, journal, redaction) for each in kept]
        case str() if value in journal.sha256:
            return journal.sha256[value]
        case str() if redaction.is_cell(name, value):
            return GONE
        case str() if " " in value or name in _DATA:
            return redaction.sentence(value)
    return value


def _object(value: dict[str, Any], name: str, journal: Journal, redaction: Redaction) -> dict[str, Any]:
    if name == "config":
        return value
    made = {
        GONE if redaction.is_cell("value", key) else key: _walked(each, key, journal, redaction)
        for key, each in value.items()
    }
    new = journal.files.get(str(value.get("sha256")))
    if new is not None and "bytes" in value:
        made |= {"sha256": new.sha256, "bytes": new.bytes} if new.sha256 else {}
    for prefix, fields in (("prefix", ("items", "vectors", "bad")), ("vectors_prefix", ("vectors", "bad"))):
        counts: Mapping[str, int] = journal.counts.get(str(value.get(prefix)), {})
        made |= {field: counts[field] for field in fields if field in counts and isinstance(value.get(field), int)}
    file = value.get("file")
    if isinstance(file, dict):  # note of a shard
        layers = [*value.get("below", ()), file]
        changed = [new for each in layers if (new := journal.files.get(str(each.get("sha256")))) is not None]
        if changed:
            vectors = value["vectors"] - changed[-1].removed
            made |= {"vectors": vectors, "reused": min(value["reused"], vectors)}
            made |= {} if changed[-1].sha256 or len(layers) > 1 else {"file": None}
    return made


def _goes(value: object, redaction: Redaction) -> bool:
    """Return True for an object of a list that is about an erased value: a hit, a query, a sample, a common value."""
    return isinstance(value, dict) and any(redaction.is_cell(name, each) for name, each in value.items())


def changed_page(raw: bytes, redaction: Redaction) -> bytes | None:
    """Return the bytes of a page after the change; None if none of it changes."""
    before = raw.decode(errors="surrogateescape")
    after = redaction.page(before)
    return None if after == before else after.encode(errors="surrogateescape")
