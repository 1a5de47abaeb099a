"""Labels and weights of rows by their event, such as a click or a purchase."""

from typing import NamedTuple

import pyarrow as pa

from configs.schema.label_heads import class_name
from configs.schema.validation import EVENT_WEIGHT, EventsConfig
from tasks.data.rows import LABEL


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
