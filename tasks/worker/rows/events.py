"""Labels and weights of rows by their event, such as a click or a purchase."""

from collections import Counter
from typing import NamedTuple

import pyarrow as pa

from configs.schema.label_heads import class_name
from configs.schema.validation import EVENT_WEIGHT, EventsConfig
from tasks.contracts.outcomes import Check
from tasks.data.rows import LABEL
from tasks.worker.rows.counts import WindowCounts

UNKNOWN_EVENT = "unknown event"
_NAMED = 5  # events in a sentence


class LabelledRows(NamedTuple):
    """`rows` have LABEL and EVENT_WEIGHT by their events; `unknown` are as they came."""

    rows: pa.Table
    unknown: pa.Table


def with_labels(table: pa.Table, events: EventsConfig) -> LabelledRows:
    """Give rows the labels and weights of their events; rows with an event that has no name in the table are apart."""
    found = [events.values.get(class_name(value)) for value in table[events.column].to_pylist()]
    known = pa.array([each is not None for each in found], pa.bool_())
    named = [each for each in found if each is not None]
    rows = table.filter(known)
    columns = {LABEL: [each.label for each in named], EVENT_WEIGHT: [each.weight for each in named]}
    for name, values in columns.items():
        column, place = pa.array(values, pa.float64()), rows.schema.get_field_index(name)
        rows = rows.append_column(name, column) if place < 0 else rows.set_column(place, name, column)
    return LabelledRows(rows, table.filter(pa.array([each is None for each in found], pa.bool_())))


def known_events(counts: WindowCounts) -> Check:
    """Return the check that the table has the events of all rows."""
    unknown, total = counts.reasons[UNKNOWN_EVENT], counts.rows_in
    sentence = "validate.events names the events of all rows."
    if unknown:
        sentence = (
            f"{unknown} of {total} rows ({unknown / total:.2%}) have an event that validate.events does not name: "
            f"{_names(counts.unknown_events)}; they are set apart."
        )
    return Check(
        name="events known", passed=not unknown, severity="warning", observed=float(unknown), sentence=sentence
    )


def way_out(counts: WindowCounts) -> str:
    """Return the end of a sentence about too many bad rows, if some have unknown events."""
    unknown = counts.reasons[UNKNOWN_EVENT]
    if not unknown:
        return ""
    return (
        f" {unknown} of them have an event that validate.events does not name, {_names(counts.unknown_events)}: name "
        "it in validate.events, or leave such rows out of the log."
    )


def _names(events: Counter[str]) -> str:
    return ", ".join(f"{name} ({rows})" for name, rows in events.most_common(_NAMED))
