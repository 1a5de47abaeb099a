"""Likely mistakes in a source and its mapping, each with the way out."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tasks.data.files.facts import FALSE_WORDS, PLACEHOLDERS, TRUE_WORDS, ColumnFacts, Problem, Shape
from tasks.data.files.faulty_texts import MARKUP, MISREAD
from tasks.data.files.lists import looks_like_a_list
from tasks.data.files.names import TIME, named_like, pairs_written, written
from tasks.data.files.roles import column_flags, flags_of, is_named_as_state
from tasks.data.files.spelling import Spelling
from tasks.data.files.survey import Survey, cell
from tasks.data.files.times import way_to_write
from tasks.data.files.values import SCIENTIFIC, is_missing_word

_NEEDED = {False: ("query", "item", TIME), True: ("id", "text", TIME)}
_FAULTY = 0.02  # share of texts with HTML, or in a wrong encoding
_EMPTY = 0.1  # share of rows without a text
_STATES = 9  # numbers that stand for states of an item
_LEAST_ITEMS = 5  # items with several rows, to tell the item's text from the query
_LEAST_ROWS = 20  # to compare lengths of texts
_LONGEST_TITLE = 150  # characters; longer texts are reviews or documents, which may well search for short titles


def find_problems(
    survey: Survey, columns: Sequence[ColumnFacts], roles: Mapping[str, str], feed: bool, typed: bool
) -> list[Problem]:
    """Return the likely mistakes of a mapping and of the columns.

    Args:
        roles: name in --map or `time` -> column.
        typed: the format has types, so that no option reads its texts as values.
    """
    by_name = {each.name: each for each in columns}
    return [
        *_missing(roles, columns, feed),
        *_same(roles),
        *_ids(roles, by_name),
        *(_log_as_feed(survey, roles, columns) if feed else _feed_as_log(roles, by_name, survey)),
        *_swapped(survey, roles, by_name),
        *(() if feed else _lists(survey, roles)),
        *_repeated(survey, roles, by_name, feed),
        *_empty(survey, roles, by_name, feed),
        *_scientific(survey, columns),
        *(_statuses(columns, roles) if feed else ()),
        *_faulty(survey, roles, by_name),
        *_binary(survey),
        *(problem for each in columns for problem in _of_values(each, roles, typed)),
    ]


def suggested_spelling(
    columns: Sequence[ColumnFacts], survey: Survey, spelling: Spelling, deleted: str | None = None
) -> Spelling:
    """Return the spelling with the options that the columns' values suggest.

    Args:
        deleted: the column of a feed that says if an item is deleted, perhaps in words such as `archived`.
    """
    shapes = {each.suggests for each in columns}
    in_words = [text for each in columns if each.suggests is Shape.word for text in survey.texts(each.name)]
    words = {text.strip().casefold() for text in in_words}
    status = next((flags for each in columns if each.name == deleted and (flags := column_flags(each))), flags_of(()))
    return Spelling(
        decimal="," if Shape.decimal_comma in shapes else spelling.decimal,
        dayfirst=spelling.dayfirst or Shape.day_first in shapes,
        true=tuple(sorted({*spelling.true, *(words & TRUE_WORDS), *status.gone})),
        false=tuple(sorted({*spelling.false, *(words & FALSE_WORDS), *status.live, *status.others})),
    )


def free_columns(columns: Sequence[ColumnFacts], roles: Mapping[str, str]) -> list[str]:
    """Return the columns that have values and no role."""
    return [each.name for each in columns if each.common and each.name not in roles.values()]


def _missing(roles: Mapping[str, str], columns: Sequence[ColumnFacts], feed: bool) -> Iterator[Problem]:
    for role in _NEEDED[feed]:
        if role in roles or (role == "item" and "item_id" in roles):
            continue
        free = free_columns(columns, roles)
        option = "--time-column" if role == TIME else f"--map {role}=COLUMN"
        choice = f"; choose one with {option}: {', '.join(free[:8])}" if free else "; the source has no other column"
        others = [each for each in columns if each.name not in roles.values()] if role == TIME else []
        near = next((each for each in others if _all_near_times(each)), None)
        if near is not None:
            text = f"no column looks like the time, but {near.name!r}: {way_to_write(near.common[0].value)}"
            yield Problem(kind="missing", column=near.name, text=text)
            continue
        if role == TIME:
            choice += "; if it has none, --at TIME is the time of all records" + ", here that of the file" * (
                feed or not free
            )
        yield Problem(kind="missing", column=None, text=f"no column looks like the {role}{choice}")
    if not feed and "item" not in roles and "item_id" in roles:
        text = (
            f"rows name their items by {roles['item_id']!r} alone: ingest the items' texts as well, with "
            "millrace look FILE --items, or map a column of texts as item"
        )
        yield Problem(kind="missing", column=roles["item_id"], text=text)


def _all_near_times(column: ColumnFacts) -> bool:
    texts = [each.value for each in column.common]
    return bool(texts) and all(map(way_to_write, texts))


def _same(roles: Mapping[str, str]) -> Iterator[Problem]:
    by_column: dict[str, list[str]] = defaultdict(list)
    for role, column in roles.items():
        by_column[column].append(role)
    for column, both in by_column.items():
        if len(both) > 1 and {*both} != {"id", "item_id"}:
            text = f"column {column!r} is given as {' and as '.join(both)}; give each its own column"
            yield Problem(kind="same", column=column, text=text)


def _ids(roles: Mapping[str, str], columns: Mapping[str, ColumnFacts]) -> Iterator[Problem]:
    for role in ("item", "query", "text"):
        column = columns.get(roles.get(role, ""))
        if column is None or not column.ids:
            continue
        example = column.common[0].value
        if role == "item":
            way_out = (
                f"map item_id={written(column.name)} in place of item, and ingest the texts of the items from a feed: "
                "millrace look FILE --items"
            )
        else:
            way_out = f"map a column of texts as {role}"
        said = f"column {column.name!r}, mapped as {role}, looks like ids ({example!r})"
        text = f"{said}: a model learns nothing from them; {way_out}"
        yield Problem(kind="ids", column=column.name, text=text)


def _lists(survey: Survey, roles: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problem of ids in lists, which would each be one item."""
    texts = survey.ids(roles["item_id"]) if "item_id" in roles else []
    if (lists := [text for text in texts if looks_like_a_list(text)]) and len(lists) > _FAULTY * len(texts):
        column = roles["item_id"]
        text = (
            f"column {column!r}, mapped as item_id, has lists such as {lists[0][:60]!r}, each of which would be one "
            f"item; --explode {written(column)} makes a row of each id"
        )
        yield Problem(kind="lists", column=column, text=text)


def _swapped(survey: Survey, roles: Mapping[str, str], columns: Mapping[str, ColumnFacts]) -> Iterator[Problem]:
    query, item = (columns.get(roles.get(role, "")) for role in ("query", "item"))
    if query is None or item is None or query.name == item.name or query.ids or item.ids:
        return
    reason = ""
    if named_like(query.name, "item") and named_like(item.name, "query"):
        reason = "by their names"
    elif "item_id" in roles:
        steady = {each.name: _steady(survey, roles["item_id"], each.name) for each in (query, item)}
        if steady[query.name] > 0.8 and steady[item.name] < 0.5:  # shares of items
            reason = f"an item of {roles['item_id']!r} has one {query.name!r} and several {item.name!r}"
    elif named_like(query.name, "query") or named_like(item.name, "item") or len(survey.sample) < _LEAST_ROWS:
        return  # their names are as good as their lengths, or better
    elif query.lengths and item.lengths and 2 * item.lengths[1] <= query.lengths[1] <= _LONGEST_TITLE:
        reason = f"texts of {item.name!r} are half as long ({item.lengths[1]} characters) or less ({query.lengths[1]})"
    if reason:
        other = pairs_written([("query", item.name), ("item", query.name)])
        text = f"query and item look swapped: {reason}; if so: --map {other}"
        yield Problem(kind="swapped", column=query.name, text=text)


def _feed_as_log(roles: Mapping[str, str], columns: Mapping[str, ColumnFacts], survey: Survey) -> Iterator[Problem]:
    """Yield the problem of a log in which each item has one row, and its query the name of an item's text."""
    query, item = (columns.get(roles.get(role, "")) for role in ("query", "item_id"))
    if query is None or item is None or "item" in roles or len(survey.sample) < _LEAST_ROWS:
        return
    once = item.distinct == len(survey.ids(item.name))
    if once and named_like(query.name, "item") and not named_like(query.name, "query"):
        text = (
            f"each item of {item.name!r} has one row, and its query is its {query.name!r}: this looks like an item "
            "feed; if it is one: millrace look FILE --items"
        )
        yield Problem(kind="swapped", column=query.name, text=text)


def _log_as_feed(survey: Survey, roles: Mapping[str, str], columns: Sequence[ColumnFacts]) -> Iterator[Problem]:
    """Yield the problem of a feed whose items have several texts each: a log, or ids that name groups of items."""
    if "id" not in roles or "text" not in roles:
        return
    groups = survey.ids(roles["id"])
    names = [each.name for each in columns if each.ids and each.distinct == len(groups) >= _LEAST_ROWS]
    if names and 2 * len({*groups}) <= len(groups) and _steady(survey, roles["id"], roles["text"], 1) < 0.5:
        text = (
            f"column {roles['id']!r}, mapped as id, has {len({*groups})} values in {len(groups):,} records, of which "
            f"only the newest of each counts; {names[0]!r} differs in each record: map id={names[0]}"
        )
        yield Problem(kind="repeated", column=roles["id"], text=text)
    elif _steady(survey, roles["id"], roles["text"]) < 0.5:
        text = (
            f"most items of {roles['id']!r} have several {roles['text']!r}, of which only the newest counts: this "
            "looks like a log of searches; if it is one: millrace look FILE"
        )
        yield Problem(kind="swapped", column=roles["text"], text=text)


def _steady(survey: Survey, id_column: str, text_column: str, least: int = _LEAST_ITEMS) -> float:
    """Return the share of items with several rows in the sample whose text is the same in all.

    Args:
        least: number of items with several rows; with fewer the share is said to be 0.65.
    """
    texts: dict[str, list[str | None]] = defaultdict(list)
    for row in survey.sample:
        if (item := cell(row, id_column)) is not None and not is_missing_word(item):
            texts[item].append(cell(row, text_column))
    several = [each for each in texts.values() if len(each) > 1]
    if len(several) < least:
        return 0.65
    return sum(len({*each}) == 1 for each in several) / len(several)


def _repeated(
    survey: Survey, roles: Mapping[str, str], columns: Mapping[str, ColumnFacts], feed: bool
) -> Iterator[Problem]:
    column = columns.get(roles.get("id", ""))
    if feed or column is None or column.distinct == len(survey.ids(column.name)):
        return
    text = (
        f"column {column.name!r}, mapped as id, repeats ({column.common[0].value!r}): validate sets all but the first "
        "row of a span with one id apart; leave id out unless it names rows, or map it as item_id if it names items"
    )
    yield Problem(kind="repeated", column=column.name, text=text)


def _empty(
    survey: Survey, roles: Mapping[str, str], columns: Mapping[str, ColumnFacts], feed: bool
) -> Iterator[Problem]:
    for role in ("id", "text") if feed else ("query", "item", "item_id"):
        column = columns.get(roles.get(role, ""))
        if column is not None and column.nulls > _EMPTY * survey.rows:
            share = column.nulls / survey.rows
            said = f"column {column.name!r}, mapped as {role}, is empty in {share:.0%} of the rows"
            way_out = "ingest writes these to --set-aside FILE" if feed else "validate sets these apart"
            text = f"{said}; {way_out}"
            yield Problem(kind="empty", column=column.name, text=text)


def _scientific(survey: Survey, columns: Sequence[ColumnFacts]) -> Iterator[Problem]:
    for column in columns:
        found = next((text for text in survey.texts(column.name) if SCIENTIFIC.fullmatch(text)), None)
        if found is not None and (column.ids or column.type == "number"):
            text = (
                f"{found!r} in column {column.name!r} is in scientific notation: a spreadsheet has cut a long "
                "number; if these are ids, make the column text there, and export it again"
            )
            yield Problem(kind="scientific", column=column.name, text=text)


def _statuses(columns: Sequence[ColumnFacts], roles: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of a feed's words for deleted items: not read, or of unknown meaning."""
    mapped = roles.get("deleted") or next((each.name for each in columns if each.name == "deleted"), None)
    for column in columns:
        if mapped is None and column.type == "number" and 1 < column.distinct <= _STATES and is_named_as_state(column):
            values = ", ".join(each.value for each in column.common)
            text = (
                f"column {column.name!r} has the numbers {values}: if one says that an item is deleted, write 1 for "
                "deleted and 0 for others, and map deleted; or 1 for items on sale, and map live"
            )
            yield Problem(kind="status", column=column.name, text=text)
        flags = column_flags(column)
        if flags is None or not flags.gone or mapped not in (None, column.name):
            continue
        share = sum(each.share for each in column.common if each.value.strip().casefold() in flags.gone)
        said = f"column {column.name!r} is {' or '.join(map(repr, flags.gone))} in {share:.1%} of the records"
        unknown = f"; {', '.join(map(repr, flags.others))} taken as on sale: is that meant?" if flags.others else ""
        if mapped is None:
            way_out = f"give deleted={written(column.name)} in --map, with {flags.options}{unknown}"
            text = f"{said}, and no column is mapped as deleted, so that these items stay in releases; {way_out}"
            yield Problem(kind="status", column=column.name, text=text)
        elif unknown:
            yield Problem(kind="status", column=column.name, text=f"{said}{unknown}")


def _faulty(survey: Survey, roles: Mapping[str, str], columns: Mapping[str, ColumnFacts]) -> Iterator[Problem]:
    """Yield the problems of texts: one text everywhere, HTML, a wrong encoding."""
    for role in ("query", "item", "text"):
        column = columns.get(roles.get(role, ""))
        if column is None or not (texts := survey.texts(column.name)):
            continue
        said = f"column {column.name!r}, mapped as {role},"
        held = Counter(text for text in texts if text.strip().casefold() in PLACEHOLDERS)
        if held:
            shown = ", ".join(f"{word!r} ({count:,})" for word, count in held.most_common(3))
            of = "" if len(survey.sample) == survey.rows else f" of a sample of {len(survey.sample):,}"
            many = f"{held.total():,} rows{of}" if held.total() > 1 else f"1 row{of}"
            text = f"{said} is a placeholder in {many}: {shown}; take these rows out of the source"
            yield Problem(kind="placeholder", column=column.name, text=text)
        if column.distinct == 1 and len(texts) >= _LEAST_ROWS:
            text = f"{said} is {texts[0][:60]!r} in all rows: a model learns nothing from it; map a column that differs"
            yield Problem(kind="constant", column=column.name, text=text)
        if (markup := [each for each in texts if re.search(MARKUP, each)]) and len(markup) > _FAULTY * len(texts):
            text = f"{said} has HTML, as in {markup[0][:60]!r}; remove tags and unescape the texts in the source"
            yield Problem(kind="markup", column=column.name, text=text)
        if (misread := [each for each in texts if re.search(MISREAD, each)]) and len(misread) > _FAULTY * len(texts):
            text = f"{said} was read in a wrong encoding, as in {misread[0][:60]!r}; export it again as UTF-8"
            yield Problem(kind="misread", column=column.name, text=text)


def _binary(survey: Survey) -> Iterator[Problem]:
    for name, row in survey.binary.items():
        text = (
            f"column {name!r} has bytes that are not UTF-8 text, first in row {row:,}, and ingest refuses such rows; "
            "write it as text, or leave it out of the source"
        )
        yield Problem(kind="misread", column=name, text=text)


def _of_values(column: ColumnFacts, roles: Mapping[str, str], typed: bool) -> Iterator[Problem]:
    """Yield the problems of the values of one column, apart from texts, which stay as they are."""
    texts = {roles.get(role) for role in ("query", "item", "id", "item_id", "text")}
    if column.name in texts or not column.common:
        return
    name, example = column.name, column.common[0].value
    said = f"{example!r} in column {name!r}"
    read = typed and name not in (roles.get("label"), roles.get("deleted"), roles.get(TIME))
    convert = "write it as a typed value, since the format has types"
    match column.suggests:
        case Shape.decimal_comma:
            way_out = convert if read else "--decimal , reads it"
            yield Problem(kind="decimal", column=name, text=f"{said} is text, for its decimal comma; {way_out}")
        case Shape.word:
            way_out = convert if read else "--true and --false read it, as in --true ja --false nein"
            yield Problem(kind="words", column=name, text=f"{said} is text; {way_out}")
        case Shape.day_first if roles.get(TIME) == name:
            yield Problem(kind="date", column=name, text=f"{said} begins with the day; --dayfirst reads it")
        case Shape.short_year if roles.get(TIME) == name:
            yield Problem(kind="date", column=name, text=f"{said} is no time: {way_to_write(example)}")
        case Shape.month_first if roles.get(TIME) == name:
            way_out = "write it as 2026-11-20 first"
            yield Problem(kind="date", column=name, text=f"{said} begins with the month; {way_out}")
    if column.type == "text" and column.suggests in (Shape.number, Shape.boolean) and not (typed or column.odd):
        text = f"column {name!r} is text for a few values; millrace look FILE shows the first"
        yield Problem(kind="odd", column=name, text=text)
    if column.odd and column.suggests and column.suggests != Shape.time:
        few = f"column {name!r} is text for a few values, the first {column.odd}"
        text = f"{few}; make them empty for a {column.suggests}"
        yield Problem(kind="odd", column=name, text=text)
