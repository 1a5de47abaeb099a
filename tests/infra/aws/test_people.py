"""The policies of people and of the program that brings the data, held against what their commands ask of a bucket."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from infra.store.factory import open_store
from tests.infra.aws.test_template import listed, plain, statements
from tests.support.cloud.s3 import S3Server
from tests.support.processes.command import call
from tests.support.workspace.past import write_past

ACTIONS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "POST": "s3:PutObject"}
ROW = {"query": "red lamp", "item": "Lamp", "label": 1}


def may(policy: str, action: str, key: str) -> bool:
    """Whether a policy allows an action on an object of the workspace; on the bucket, where the key is empty."""
    arn = "${Bucket.Arn}" + (f"/main/{key}" if key else "")
    return any(
        action in listed(one["Action"]) and any(fnmatch.fnmatchcase(arn, plain(r)) for r in listed(one["Resource"]))
        for owner, one in statements()
        if owner == policy
    )


def asked(s3: S3Server, workspace: str) -> set[tuple[str, str]]:
    """What was asked of the bucket: actions, and keys of the workspace."""
    bucket, _, prefix = workspace.removeprefix("s3://").partition("/")
    found = set()
    for line in s3.requests:
        method, _, address = line.partition(" ")
        key = unquote(urlsplit(address).path).removeprefix(f"/{bucket}").removeprefix("/")
        if method == "POST" and address.endswith("?delete"):
            found.add(("s3:DeleteObject", "any/key"))  # the body names many
        elif key:
            found.add((ACTIONS.get(method, "s3:DeleteObject"), key.removeprefix(f"{prefix}/")))
        else:
            found.add(("s3:ListBucket", ""))
    return found


def refused(policy: str, s3: S3Server, workspace: str) -> list[tuple[str, str]]:
    return sorted(each for each in asked(s3, workspace) if not may(policy, *each))


def millrace(capsys: pytest.CaptureFixture[str], workspace: str, *arguments: str) -> None:
    done = call(capsys, *arguments, "--workspace", workspace)
    assert done.code == 0, done.err


def test_whoever_brings_data_may_do_what_ingest_does(s3: S3Server, tmp_path: Path, capsys) -> None:
    workspace = s3.new_workspace()
    for name, labels in (("first", (1, 0)), ("corrected", (1, 1))):
        rows = [
            ROW | {"item_id": f"i{n}", "at": f"2026-{month:02}-03", "label": label}
            for month in (1, 2)
            for n, label in enumerate(labels)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        more = ["--replace"] if name == "corrected" else []
        source = ("--source", str(tmp_path / f"{name}.jsonl"), "--format", "jsonl", "--time-column", "at")
        mapping = ("--map", "query=query,item=item,label=label,item_id=item_id")
        millrace(capsys, workspace, "ingest", *source, "--span", "month", *mapping, *more)
    feed = ("--items", *source[1:], "--map", "id=item_id,text=item")
    millrace(capsys, workspace, "ingest", *feed, "--span", "month")
    written = {key.partition("/")[0] for action, key in asked(s3, workspace) if action == "s3:PutObject"}
    assert written == {"spans", "items", "packs", ".locks"}
    assert refused("IngesterPolicy", s3, workspace) == []


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("releases",),
        ("freshness",),
        ("history",),
        ("history", "--ledger"),
        ("history", "--prometheus", "-"),
        ("backfill", "list"),
    ],
)
def test_whoever_reads_needs_to_read_alone(s3: S3Server, capsys, command: tuple[str, ...]) -> None:
    workspace = s3.new_workspace()
    write_past(open_store(workspace), 2)
    open_store(workspace).write("spans/2026-W01/v1/part-0.parquet", b"")
    s3.requests.clear()
    call(capsys, *command, "--workspace", workspace)
    assert asked(s3, workspace)
    assert refused("ReaderPolicy", s3, workspace) == []


def test_who_operates_may_roll_back_skip_forgive_and_prune(s3: S3Server, tmp_path: Path, capsys) -> None:
    workspace = s3.new_workspace()
    store = open_store(workspace)
    write_past(store, 4)
    s3.requests.clear()
    for arguments in (["rollback", "--to", "1"], ["prune", "--keep", "1"], ["hosts", "--forgive", "i-1"]):
        call(capsys, *arguments, "--workspace", workspace)  # however it ends
    assert {action for action, _ in asked(s3, workspace)} >= {"s3:GetObject", "s3:PutObject"}
    assert refused("OperatorPolicy", s3, workspace) == []


@pytest.mark.parametrize("policy", ["ReaderPolicy", "IngesterPolicy", "OperatorPolicy"])
def test_nobody_but_jobs_writes_models_vectors_or_checkpoints(policy: str) -> None:
    made = ["models/m/released_modules.py", "vectors/m/c/MANIFEST.json", "lineages/main/step-1/model.safetensors"]
    made += ["catalogue/k/MANIFEST.json", "compile/k/MANIFEST.json", "tokens/k/rows.bin", "negatives/k/items.parquet"]
    made += [] if policy == "IngesterPolicy" else ["spans/2026-01/v1/part-00000.parquet", "items/i/v1/MANIFEST.json"]
    assert [key for key in made if may(policy, "s3:PutObject", key)] == []
    records = ["releases/CURRENT", "releases/9.json", "runs/r/train/result.json", ".locks/lineages/main.run.fence"]
    records += ["open/publish-1-shop", "packs/sums/2026-11.json"]
    if policy != "OperatorPolicy":
        assert [key for key in records if may(policy, "s3:PutObject", key) or may(policy, "s3:DeleteObject", key)] == []
