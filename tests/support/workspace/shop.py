"""A small shop on disk, and the installed command `millrace` over it: real workers, a real Prefect server.

Nothing here is a fake, so a stage takes seconds; share what it makes.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

from flows.demo.search_log import write_shop
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tests.support.processes import forked
from tests.support.processes.command import CommandResult

SPANS = ("2026-01", "2026-02", "2026-03")
COLUMNS = "id=query_id,query=query,item=product,item_id=product_id,label=bought"
_LETTER = "ü" if sys.getfilesystemencoding() == "utf-8" else "u"  # another locale's workspace has a path in ASCII
AWKWARD = (
    f"a #1 'w' %20 [{_LETTER}] {{x}}: y"  # a folder name that is legal, and cut by whoever splits, quotes or expands it
)
_WITH_MANIFEST = re.compile(r"(spans/[^/]+/v\d+|lineages/[^/]+/step-\d+|models/[^/]+|vectors/[^/]+/[^/]+)/")
STAGES = ["validate", "health", "warmup", "train", "evaluate", "infer", "release"]

# As configs/demo.yaml, with as little arithmetic as there can be.
SETTINGS = {
    "pipeline": "shop",
    "features": {"numeric": ["price"], "categorical": ["category", "locale"], "query": ["locale"]},
    "validate": {"label_min": 0.0, "label_max": 1.0, "numeric_min": 0.0, "max_text_chars": 2000},
    "health": {"min_memory_gib": 0.1, "min_disk_gib": 0.1, "matmul_size": 64, "all_reduce_mib": 1}
    | {"max_slowest_to_median": 1000.0},
    "warmup": {"steps": 1},
    "model": {
        "scratch": {
            "vocab_size": 600,
            "hidden_size": 32,
            "layers": 1,
            "attention_heads": 2,
            "intermediate_size": 64,
            "max_tokens": 32,
        },
        "interaction": {"kind": "both", "deep_widths": [32]},
    },
    "heads": {
        "contrastive": {"positives_only": True},
        "classification": {"weight": 0.2, "input": "pair", "negative_max": 0.0, "positive_min": 1.0},
    },
    "train": {
        "batch_rows": 64,
        "max_tokens": {"query": 32, "item": 32},
        "sequence_tokens": 64,
        "learning_rate": 2e-3,
        "warmup_steps": 5,
    },
    "evaluate": {
        "slices": ["locale"],
        "gates": [
            {"metric": "recall@10", "direction": "higher", "threshold": -1.0, "baseline": "champion"}
            | {"severity": "critical"}
        ],
    },
    "infer": {"max_tokens": 32, "sequence_tokens": 64, "shard_rows": 128},
}


class Shop(NamedTuple):
    """One workspace, the settings of its runs, and the home of the Prefect server that serves it."""

    workspace: Path
    config_file: Path
    home: Path
    bucket: str = ""  # URI of the workspace if it is on S3

    def millrace(self, *arguments: str) -> CommandResult:
        """The command, in a process of its own; it starts the server by itself where it needs one."""
        workspace = self.bucket or str(self.workspace)
        environment = os.environ | {"PREFECT_HOME": str(self.home), "MILLRACE_WORKSPACE": workspace}
        return forked.millrace(*arguments, environment=environment)

    def run(self, *arguments: str) -> CommandResult:
        return self.millrace("run", "--config", str(self.config_file), "--json", *arguments)

    def ingest(self, source: Path, columns: str = COLUMNS, *options: str) -> CommandResult:
        form = ("--format", "jsonl", "--time-column", "searched_at", "--span", "month", "--map", columns)
        return self.millrace("ingest", "--source", str(source), *form, *options, "--json")

    def files(self, under: str = "") -> dict[str, int]:
        """Path -> time of its last change, of all files but locks."""
        paths = (path for path in (self.workspace / under).rglob("*") if path.is_file())
        names = {str(path.relative_to(self.workspace)): path.stat().st_mtime_ns for path in paths}
        return {name: changed for name, changed in names.items() if not name.startswith(".locks/")}

    def half_written(self) -> list[str]:
        return half_written(DirectoryStore(self.workspace))


def half_written(store: Store) -> list[str]:
    """Return folders of a workspace that should have a manifest, and have none."""
    keys = set(store.list(""))
    folders = {found[1] for key in keys if (found := _WITH_MANIFEST.match(key))}
    return sorted(folder for folder in folders if f"{folder}/MANIFEST.json" not in keys)


def open_shop(folder: Path, home: Path, rows_per_span: int, bucket: str = "") -> Shop:
    """Three months of searches, ingested into a directory, or into the workspace behind the URI `bucket`."""
    shop = Shop(folder / AWKWARD, folder / "shop.yaml", home, bucket)
    shop.config_file.write_text(yaml.safe_dump(SETTINGS))
    source = folder / "shop.jsonl.gz"
    write_shop(source, spans=len(SPANS), rows_per_span=rows_per_span, seed=3)
    assert [span["name"] for span in shop.ingest(source).json["spans"]] == list(SPANS)
    return shop
