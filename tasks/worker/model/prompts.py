"""What stands before each text of some rows: the same before all, or by the entity type or locale of a row."""

from collections.abc import Sequence

import pyarrow as pa

from configs.schema.model import Prompts
from tasks.worker.model.features import Side


def prompts_of(rows: pa.Table, side: Side, prompts: Prompts, entity: str | None) -> str | Sequence[str]:
    """Return the prompt of all rows, or one for each.

    Args:
        entity: the column that says what a row is about; rows without a value, or with one that has no prompts of its
            own, get the common ones.
    """
    common: str = getattr(prompts, side)
    own = {name: found for name, each in prompts.by_entity.items() if (found := getattr(each, side)) is not None}
    if entity is None or not own or entity not in rows.column_names:
        return common
    return [own.get(value, common) for value in rows[entity].cast(pa.string()).to_pylist()]
