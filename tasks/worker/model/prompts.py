"""The prompt before each text: one for all rows, or one per entity type or locale."""

from collections.abc import Sequence

import pyarrow as pa

from configs.schema.model import Prompts
from tasks.worker.model.features import Side


def prompts_of(rows: pa.Table, side: Side, prompts: Prompts, entity: str | None) -> str | Sequence[str]:
    """Return one prompt for all rows, or a list with one per row.

    Args:
        entity: the column that selects a row's prompt; rows whose value is missing or has no prompt get the common one.
    """
    common: str = getattr(prompts, side)
    own = {name: found for name, each in prompts.by_entity.items() if (found := getattr(each, side)) is not None}
    if entity is None or not own or entity not in rows.column_names:
        return common
    return [own.get(value, common) for value in rows[entity].cast(pa.string()).to_pylist()]
