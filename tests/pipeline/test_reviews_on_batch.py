"""The proof on real reviews: MiniLM by two local workers and by two nodes of AWS Batch is the same bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.prefect_server import down
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tests.support.cloud.cloud import Side, open_cloud
from tests.support.cloud.s3 import S3Server

ROOT = Path(__file__).resolve().parents[2]
REVIEWS = ROOT / "../shared/data/amazon-reviews-sample/reviews.jsonl.gz"
MILLRACE = Path(sys.executable).with_name("millrace")
SPAN = "2021-Q1"
INGEST = ("--format", "jsonl", "--time-column", "timestamp", "--span", "quarter")
COLUMNS = ("--map", "id=review_id,query=text,item=product_title,label=rating")
SETTINGS = ("train.workers=2", "infer.workers=4", "infer.shard_rows=64", "train.epochs=1")

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not REVIEWS.exists(), reason="needs the sample of product reviews"),
]


def millrace(home: Path, *arguments: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [str(MILLRACE), *arguments, "--json"],
        env=environment | {"PREFECT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.shows("whole pipeline")
def test_two_nodes_and_an_array_of_four_give_what_two_local_workers_give(s3_server: S3Server, tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    sides = []
    with open_cloud(s3_server) as cloud:
        try:
            for compute, uri in (("local", str(tmp_path / "workspace")), ("batch", cloud.s3.new_workspace())):
                millrace(home, "ingest", "--source", str(REVIEWS), *INGEST, *COLUMNS, "--workspace", uri)
                settings = [word for one in (f"compute={compute}", *SETTINGS) for word in ("--set", one)]
                config = ("--config", str(ROOT / "configs" / "reviews.yaml"))
                output = millrace(home, "run", "--span", SPAN, "--workspace", uri, *config, *settings)
                store = DirectoryStore(Path(uri)) if compute == "local" else open_store(uri)
                sides.append(Side(store, output))
        finally:
            down(home)
        local, batch = sides
        kinds = {
            job["tags"]["millrace-stage"]: (
                job.get("nodeProperties", {}).get("numNodes"),
                job.get("arrayProperties", {}).get("size"),
            )
            for job in cloud.batch.jobs()
        }
        assert (kinds["train"], kinds["infer"]) == ((2, None), (None, 4))
        assert local.output["state"] == batch.output["state"] == "Released"
        assert local.digests() == batch.digests()
        assert local.output["report"]["metrics"] == batch.output["report"]["metrics"]
        assert local.vectors().equals(batch.vectors())
        print(local.digests(), local.output["report"]["metrics"])
