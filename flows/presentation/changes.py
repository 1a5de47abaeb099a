"""Changes between two releases: the metrics, the queries with the largest gains and losses, new and gone items."""

from collections.abc import Iterator, Mapping, Sequence

from flows.presentation.model import Section, Table, table
from flows.presentation.wording import AMONG_ALL, AMONG_SHARED, NONE, count, difference, number, share, shortened
from tasks.contracts.evaluation import MAIN
from tasks.contracts.search import Changes, Hit, ListedItem, QueryChange
from tasks.foundation.nouns import plural
from tasks.quality.common_items import CommonItems

MOST_QUERIES = 8  # in each direction
MOST_HITS = 3  # per query and release
LETTERS = 80  # shown of a query or an item's text


def changes_section(changes: Changes) -> Section:
    """Return the numbers, and as parts the biggest wins, the biggest losses, and the items that are new or gone."""
    after = _named(changes)
    wins = _queries(changes, changes.wins, "rose")
    losses = _queries(changes, changes.losses, "fell")
    parts = (
        Section("Biggest wins", () if wins else ("No item that both releases hold rose.",), tables=wins),
        Section("Biggest losses", () if losses else ("No item that both releases hold fell.",), tables=losses),
        *_listed(changes.new, changes.new_items, "New items", f"Some of the items that {after} alone has"),
        *_listed(changes.gone, changes.gone_items, "Gone items", f"Some of the items that {after} no longer has"),
    )
    return Section(
        f"What changed from release {changes.before} to {changes.after or after}",
        tuple(sentences(changes)),
        id="changes",
        short="What changed",
        tables=_metrics(changes),
        parts=parts if changes.queries else parts[2:],
    )


def sentences(changes: Changes) -> Iterator[str]:
    """Yield sentences about the model, model and catalogue together, the catalogue, and the search results."""
    if changes.same_model:
        embedded = plural(changes.new_items + changes.changed_items, "item")
        yield (
            f"The model is the same as in release {changes.before}: {embedded} got a new vector, the others kept "
            "theirs. So few changed that the holdout queries were not searched again."
        )
    elif not changes.queries:
        yield "No holdout query is known, so ranks are not compared."
    else:
        yield from _of_the_model(changes)
        yield from _with_the_catalogues(changes)
    moved = ", ".join(
        f"{count(items)} {what}"
        for items, what in (
            (changes.new_items, "new"),
            (changes.gone_items, "gone"),
            (changes.changed_items, "with another text or feature"),
        )
    )
    yield f"The catalogue had {plural(changes.items_before, 'item')} and has {count(changes.items_after)}: {moved}."
    alike = []
    if changes.overlap_at_10 is not None:
        alike.append(f"of the ten best hits of a query, {share(changes.overlap_at_10)} are the same")
    if changes.same_item_cosine is not None:
        alike.append(f"the two vectors of an item have a cosine of {changes.same_item_cosine:.3f}")
    if alike:
        words = "; ".join(alike)
        yield f"{words[0].upper()}{words[1:]}, on average."


def _of_the_model(changes: Changes) -> Iterator[str]:
    shared = changes.shared
    if MAIN not in shared.metrics_before or MAIN not in shared.metrics_after:
        yield (
            "The model: no query is about an item that both releases hold and has ten others to compete with it, so "
            "the models are not compared."
        )
        return
    before, after = shared.metrics_before[MAIN], shared.metrics_after[MAIN]
    yield (
        f"The model: {MAIN} {AMONG_SHARED} was {number(before)} and is {number(after)}, over "
        f"{plural(shared.queries, 'holdout query', 'holdout queries')} about these {plural(shared.items, 'item')}, "
        f"{share(CommonItems(shared.items, changes.items_after).share)} of the catalogue, each by the vectors that its "
        "release serves."
    )


def _with_the_catalogues(changes: Changes) -> Iterator[str]:
    before, after = changes.metrics_before.get(MAIN), changes.metrics_after.get(MAIN)
    if before is None or after is None:
        return
    yield (
        f"With the catalogue: {MAIN} {AMONG_ALL} was {number(before)} and is {number(after)}, over all "
        f"{plural(changes.queries, 'holdout query', 'holdout queries')}; an item that release {changes.before} lacks "
        "was not found."
    )


def _metrics(changes: Changes) -> tuple[Table, ...]:
    """Return the metrics on shared items (models alone), then on all items of each release."""
    of_all = f"{AMONG_ALL}: {plural(changes.queries, 'holdout query', 'holdout queries')}"
    shared = changes.shared
    of_both = f"{AMONG_SHARED}: {plural(shared.queries, 'holdout query', 'holdout queries')}"
    return (
        *_metrics_of(changes, shared.metrics_before, shared.metrics_after, f"The model {of_both}"),
        *_metrics_of(changes, changes.metrics_before, changes.metrics_after, f"With the catalogue, {of_all}"),
    )


def _metrics_of(
    changes: Changes, before: Mapping[str, float], after: Mapping[str, float], caption: str
) -> tuple[Table, ...]:
    rows = [(name, number(before.get(name)), number(value), difference(value, before.get(name)))
            for name, value in after.items()]  # fmt: skip
    columns = ("metric", f">release {changes.before}", f">{_named(changes)}", ">difference")
    return (table(caption, columns, rows),) if rows and changes.queries else ()


def _queries(changes: Changes, queries: Sequence[QueryChange], moved: str) -> tuple[Table, ...]:
    if not queries:
        return ()
    rows = [
        (
            shortened(one.query, LETTERS),
            _rank(one.rank_before),
            _rank(one.rank_after),
            shortened(one.text, LETTERS),
            _hits(one.before),
            _hits(one.after),
        )
        for one in queries[:MOST_QUERIES]
    ]
    hits = (f"~best hits of release {changes.before}", f"~best hits of {_named(changes)}")
    columns = ("~query", ">rank before", ">rank after", "~its item", *hits)
    caption = f"The queries whose item {moved} most {AMONG_ALL}, of the items that both hold; the largest change first"
    return (table(caption, columns, rows),)


def _named(changes: Changes) -> str:
    return f"release {changes.after}" if changes.after is not None else "the candidate"


def _rank(rank: int | None) -> str:
    return NONE if rank is None else count(rank)


def _hits(hits: Sequence[Hit]) -> str:
    return "\n".join(f"{place}. {shortened(hit.text, LETTERS)}" for place, hit in enumerate(hits[:MOST_HITS], start=1))


def _listed(items: Sequence[ListedItem], of: int, title: str, caption: str) -> tuple[Section, ...]:
    """Return a part with the first items and their total number; empty without items."""
    if not of:
        return ()
    rows = [(shortened(item.item_id, LETTERS), shortened(item.text, LETTERS)) for item in items]
    shown = (table(caption, ("item", "~text"), rows, folded=len(rows) > MOST_QUERIES),) if rows else ()
    return (Section(f"{title}: {count(of)}", tables=shown),)
