"""DuckDB with bounded memory, in the process."""

import os
from pathlib import Path

import duckdb

MEMORY = "768MiB"  # beyond it, DuckDB writes to disk. With Python and Arrow, a process stays below 2 GiB.


def connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    """Return a new database in memory that uses the folder `scratch` for what does not fit."""
    settings = {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch / "spilled"),
        "threads": len(os.sched_getaffinity(0)),
        "preserve_insertion_order": False,
    }
    return duckdb.connect(":memory:", config=settings)
