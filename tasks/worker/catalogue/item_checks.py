"""Checks of a span's items against the catalogue before it: find errors that no single row shows."""

from collections.abc import Callable, Mapping, Sequence

from configs.schema.stages import Bounds
from configs.schema.validation import ItemsConfig
from tasks.contracts.outcomes import Check
from tasks.contracts.profiles import KnownRelation
from tasks.worker.catalogue.against import SpanItems
from tasks.worker.catalogue.wrong_joins import Relation, surely_lost
from tasks.worker.checks.verdicts import check_share, not_judged

_JOINED = (
    "Are ids and texts joined rightly in the export? If they are not, correct it and ingest the span again. If the "
    "shop has changed its texts, ingest them as an item feed first: millrace ingest --items."
)
_RENAMED = (
    "Each would be in the index twice, the old one for ever. Did the ids get another form? Ingest the span again with "
    "the ids of before, or delete the old ones with an item feed: millrace ingest --items."
)


_UNRELATED = (
    "The values may be those of other items: are ids and features joined rightly? If not, correct the export and "
    "ingest the span again."
)
_UNIT = "Is it another unit, as cents for euros? Ingest the span again in the unit of before."
_ALIKE = "Is it a placeholder? Ingest the span again once the items have their texts."
_OTHERS = (
    "Do the new items have the texts of other ones? If so, correct the export and ingest the span again with --replace."
)

_WORTH_EXAMPLES = 0.05

Usual = Mapping[str, KnownRelation]


def item_checks(found: Sequence[SpanItems], limits: ItemsConfig, before: Callable[[], Usual] = dict) -> list[Check]:
    """Return the checks of the compared spans, each for the worst span; empty without spans.

    Args:
        before: returns the relations of the last span before the window to the spans before it, by feature; it is
            called only if a relation now is weak. Values of a feature that it lacks may be unrelated by nature, as
            the price of a sale: a fall to no relation is only a warning then.
    """
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
        _alike(found, limits),
        _fitting(found, limits),
        *_related(found, limits, before),
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


def _alike(found: Sequence[SpanItems], limits: ItemsConfig) -> Check:
    name = "new items differ"
    enough = [each for each in found if each.new >= limits.min_items]
    if not enough:
        most = max(each.new for each in found)
        return not_judged(
            name, limits.alike, f"{most} new items are fewer than the {limits.min_items} of validate.items.min_items"
        )
    worst = max(enough, key=lambda each: each.alike / each.new - each.alike_before)
    share = worst.alike / worst.new
    as_in = f", most often {worst.texts_alike[0]}" if worst.texts_alike else ""
    sentence = (
        f"{worst.alike} of {worst.new} new items of span {worst.span} have the text of another new item ({share:.2%}"
        f"{as_in}), as {worst.alike_before:.2%} of the known ones"
    )
    return check_share(
        name, max(0.0, share - worst.alike_before), limits.alike, "items.alike", sentence, _ALIKE, "more"
    )


def _fitting(found: Sequence[SpanItems], limits: ItemsConfig) -> Check:
    """Return the check of the words that queries share with new items, next to those with known items.

    Queries in a new language about items in an old one share none either. They have few words of any new item, so
    that is a warning alone.
    """
    name = "new items fit their queries"
    lost = {each.span: surely_lost(each.words_of_new, each.words_of_known) for each in found}
    enough = [
        each
        for each in found
        if lost[each.span] is not None and min(each.new, each.words_of_new.rows) >= limits.min_items
    ]
    if not enough:
        why = (
            "too few rows about new items, or queries of known items that share no more words with them than by chance"
        )
        return not_judged(name, limits.words, why)
    worst = max(enough, key=lambda each: lost[each.span] or 0.0)
    share, new, known = lost[worst.span] or 0.0, worst.words_of_new, worst.words_of_known
    sentence = (
        f"{new.share(new.own):.1%} of {new.rows} rows of span {worst.span} about new items have a query that shares a "
        f"word with its item, {new.share(new.other):.1%} with another one by chance; about known items "
        f"{known.share(known.own):.1%} and {known.share(known.other):.1%}. Surely lost: {share:.1%}"
    )
    foreign = new.share(new.any) < known.share(known.any) / 2
    bounds = Bounds(warn=limits.words.warn, stop=None) if foreign else limits.words
    return check_share(name, share, bounds, "items.words", sentence, _OTHERS)


def _related(found: Sequence[SpanItems], limits: ItemsConfig, before: Callable[[], Usual]) -> list[Check]:
    """Return two checks for each feature: its unit, and its relation to the values before."""
    checks: list[Check] = []
    usual: Usual | None = None
    for feature in dict.fromkeys(name for each in found for name in each.relations):
        unit, related = f"unit of {feature}", f"{feature} related to before"
        enough = [
            (each.span, relation)
            for each in found
            if (relation := each.relations.get(feature)) is not None and relation.items >= limits.min_items
        ]
        if not enough:
            why = f"fewer known items than the {limits.min_items} of validate.items.min_items have a {feature}"
            checks += [not_judged(unit, limits.unit, why), not_judged(related, limits.unrelated, why)]
            continue
        span, worst = max(enough, key=lambda each: each[1].unit)
        times = (
            f"{worst.times:g} times the {feature} before"
            if worst.unit
            else f"a power of ten times the {feature} before"
        )
        sentence = (
            f"{worst.unit:.2%} of {worst.items} known items of span {span} have {times}{_shown(worst, worst.unit)}"
        )
        checks.append(check_share(unit, worst.unit, limits.unit, "items.unit", sentence, _UNIT))
        span, worst = min(enough, key=lambda each: 1.0 if each[1].kept is None else each[1].kept)
        if worst.kept is None:
            checks.append(not_judged(related, limits.unrelated, f"all known items have one {feature}"))
            continue
        if usual is None and worst.kept < 1 - min(
            each for each in (limits.unrelated.warn, limits.unrelated.stop, 1.0) if each is not None
        ):
            usual = before()
        then = (usual or {}).get(feature)
        kept = 1.0 if then is None or then.kept is None or then.items < limits.min_items else then.kept
        lost = max(0.0, kept - worst.kept)
        was = f", {kept:.2f} in the span before" if then is not None and then.kept is not None else ""
        sentence = (
            f"The {feature} of {worst.items} known items of span {span} agrees with the one before by {worst.kept:.2f} "
            f"(1: the same order or category, 0: no relation){was}{_shown(worst, lost)}"
        )
        bounds = limits.unrelated if was else Bounds(warn=limits.unrelated.warn, stop=None)
        checks.append(check_share(related, lost, bounds, "items.unrelated", sentence, _UNRELATED))
    return checks


def _shown(relation: Relation, share: float) -> str:
    return f", as {'; '.join(relation.examples)}" if relation.examples and share > _WORTH_EXAMPLES else ""
