"""A program of a search team that reads releases as docs/data.md says, with nothing of this project: JSON and Parquet.

It looks at the current release again and again until its standard input ends, and prints what it saw, a line of JSON
for each look. A file that is missing or has another size than its manifest says ends it with an error.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq

Read = Callable[[str], bytes]


def reader_of(workspace: str) -> Read:
    """How to read an object of a workspace, by its key."""
    if not workspace.startswith("s3://"):
        return lambda key: (Path(workspace) / key).read_bytes()
    bucket, _, prefix = workspace.removeprefix("s3://").partition("/")
    client: Any = boto3.client("s3", region_name=os.environ.get("AWS_DEFAULT_REGION", "us-east-1"))
    return lambda key: client.get_object(Bucket=bucket, Key=f"{prefix}/{key}")["Body"].read()


def files_of(read: Read, folder: str) -> dict[str, bytes]:
    """All files of a folder by its manifest."""
    files = {}
    for entry in json.loads(read(f"{folder}/MANIFEST.json"))["files"]:
        key = entry.get("at", f"{folder}/{entry['name']}")
        files[entry["name"]] = read(key)
        assert len(files[entry["name"]]) == entry["bytes"], f"{key} is not whole"
    return files


def look(read: Read) -> dict[str, Any]:
    """What a search over the current release would use."""
    current = json.loads(read("releases/CURRENT"))["release"]
    release = json.loads(read(f"releases/{current}.json"))
    items: dict[str, str | None] = {}
    for data in files_of(read, release["vectors_prefix"]).values():  # a newer file of a partition comes later
        table = pq.read_table(io.BytesIO(data), columns=["item_id", "model_version"])
        items.update(zip(table["item_id"].to_pylist(), table["model_version"].to_pylist(), strict=True))
    live = [version for version in items.values() if version is not None]
    return {
        "release": current,
        "model": release["model"]["version"],
        "encoder": files_of(read, release["model_prefix"])["version.txt"].decode(),
        "vectors_by": sorted(set(live)),
        "vectors": len(live),
        "recorded": release["vectors"],
    }


def main() -> None:
    read = reader_of(sys.argv[1])
    while not select.select([sys.stdin], [], [], 0)[0]:
        print(json.dumps(look(read)), flush=True)
    os._exit(0)  # the end of Python may come while threads of Arrow begin, which aborts the process


if __name__ == "__main__":
    main()
