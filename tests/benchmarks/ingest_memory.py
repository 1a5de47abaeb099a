"""Peak memory of ingest, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from infra.store.factory import open_store
from tasks.data.ingest import ingest
from tasks.data.files.formats import Format
from tasks.contracts.spans import SpanKind
columns = {"query": "text", "item": "product_title", "label": "rating"}
ingest(open_store(sys.argv[2]), Path(sys.argv[1]), Format.jsonl, "timestamp", SpanKind.quarter, columns)
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
"""


def peak_memory_mib(source: Path, copies: int) -> float:
    """Peak resident memory, MiB, of ingesting `copies` of a gzip file laid end to end (gzip files concatenate)."""
    with tempfile.TemporaryDirectory() as name:
        many = Path(name) / "copies.jsonl.gz"
        with many.open("wb") as handle:
            for _ in range(copies):
                handle.write(source.read_bytes())
        command = [sys.executable, "-c", PROGRAM, str(many), str(Path(name) / "workspace")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024
