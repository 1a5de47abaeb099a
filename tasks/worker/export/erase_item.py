"""`python -m tasks.worker.export.erase_item`: deletes an item from all tables of a publish target, or only looks.

Standard input has one line of JSON. Tables of earlier releases, which a rollback uses, lose the item as the served one.
"""

import argparse
import contextlib
import sys

from tasks.contracts.erasing import ErasedTables, EraseItem, TargetLine
from tasks.foundation.errors import StoreError
from tasks.worker.export.target import is_copy
from tasks.worker.export.targets import open_target
from tasks.worker.search.answering import Answering, answer


def erase_item(asked: EraseItem) -> ErasedTables:
    """Delete the item; return the tables that had it.

    Raises:
        ConfigError: the client is not installed, or the target refuses the credentials.
        StoreError: the target can't be reached, or still has the item afterwards.
    """
    found = []
    with contextlib.closing(open_target(asked.target)) as target:
        served = target.serving()
        for table in target.tables():
            if is_copy(table):  # left by a killed publication: nobody reads it
                if not asked.dry_run:
                    target.drop(table)
                continue
            ids = list(asked.item_ids)
            held = bool(target.rows_of(table, ids))
            if not asked.dry_run:
                target.erase(table, ids)  # also without the item: files may still have a row that a refresh deleted
                if target.rows_of(table, ids):
                    raise StoreError(f"{target.where}, table {table}: it still has the item after it was deleted")
            if held:
                found.append(
                    TargetLine(target=asked.target.name, kind=asked.target.kind, table=table, serving=table == served)
                )
    return ErasedTables(tables=tuple(found))


def main() -> None:
    """Print the tables that had the item."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.export.erase_item", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.parse_args()

    def work(give: Answering) -> None:
        give(erase_item(EraseItem.model_validate_json(sys.stdin.readline())))

    answer(work)


if __name__ == "__main__":
    main()
