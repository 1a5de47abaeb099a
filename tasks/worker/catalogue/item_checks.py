"""Checks of a span's items against the catalogue before it: find errors that no single row shows."""

from collections.abc import Callable, Sequence

from configs.schema.stages import Bounds
from configs.schema.validation import ItemsConfig
from tasks.contracts.outcomes import Check
from tasks.worker.catalogue.against import SpanItems
from tasks.worker.checks.verdicts import check_share, not_judged

_JOINED = (
    "Are ids and texts joined rightly in the export? If they are not, correct it and ingest the span again. If the "
    "shop has changed its texts, ingest them as an item feed first: millrace ingest --items."
)
_RENAMED = (
    "Each would be in the index twice, the old one for ever. Did the ids get another form? Ingest the span again with "
    "the ids of before, or delete the old ones with an item feed: millrace ingest --items."
)


def item_checks(found: Sequence[SpanItems], limits: ItemsConfig) -> list[Check]:
    """Return the checks of the compared spans, each for the worst span; empty without spans."""
    if not found:
        return []
    features = dict.fromkeys(name for each in found for name in each.values)
    return [
        _check("known items as before", found, limits.min_items, limits.changed, "items.changed", _changed, _JOINED),
        *(
            _check(f"{name} of known items as before", found, limits.min_items, limits.values, "items.values",
                   lambda each, name=name: _other_value(each, name))
            for name in features
        ),
        _check("items known", found, limits.min_items, limits.new, "items.new", _new),
        _check("items not doubled", found, limits.min_items, limits.doubled, "items.doubled", _doubled, _RENAMED),
    ]  # fmt: skip


_Count = tuple[int, int, str]  # count, total, and the rest of the sentence


def _check(
    name: str,
    found: Sequence[SpanItems],
    fewest: int,
    bounds: Bounds,
    setting: str,
    counted: Callable[[SpanItems], _Count],
    advice: str = "",
) -> Check:
    judged = [(span, *counted(span)) for span in found]
    enough = [each for each in judged if each[2] >= fewest]
    if not enough:
        most = max(of for _, _, of, _ in judged)
        return not_judged(name, bounds, f"{most} items are fewer than the {fewest} of validate.items.min_items")
    _, some, of, sentence = max(enough, key=lambda each: each[1] / each[2])
    return check_share(name, some / of, bounds, setting, f"{some} of {of} {sentence} ({some / of:.2%})", advice)


def _changed(each: SpanItems) -> _Count:
    examples = f", as {'; '.join(each.changes)}" if each.changes else ""
    return each.changed, each.known, f"items of span {each.span} that were known have another text{examples}"


def _other_value(each: SpanItems, feature: str) -> _Count:
    return each.values[feature], each.known, f"items of span {each.span} that were known have another {feature}"


def _new(each: SpanItems) -> _Count:
    return each.new, each.items, f"items of span {each.span} are new to the catalogue"


def _doubled(each: SpanItems) -> _Count:
    how = f": {each.same_id} have a known id in another form, {each.same_text} a known item's text"
    examples = f", as {', '.join(each.doubles)}" if each.doubles else ""
    return (
        each.doubled,
        each.items,
        f"items of span {each.span} are new, but seem to be known ones{how if each.doubled else ''}{examples}",
    )
