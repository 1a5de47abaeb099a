"""An item that a worker deletes from the tables of one publish target, and its answer."""

from pydantic import Field

from configs.schema.stages import AnyTarget
from tasks.foundation.records import Record


class EraseItem(Record):
    """The one line to the process, which keeps it nowhere."""

    target: AnyTarget
    item_ids: tuple[str, ...] = Field(description="the item's id, in each form that a table may hold")
    dry_run: bool = Field(description="true: only look where the item is")


class TargetLine(Record):
    """One table of a publish target."""

    target: str
    kind: str = Field(description="kind of target, such as lancedb")
    table: str = Field(description="table or collection that had the item")
    serving: bool = Field(description="true: consumers read this table")


class ErasedTables(Record):
    """The line of the process."""

    tables: tuple[TargetLine, ...] = Field(description="tables that had the item")
