"""`make demo-batch`: the demo with `compute: batch` and its workspace on S3, against servers that play both here.

What a team has on AWS are a queue and a bucket; to the product these are endpoints and nothing else. Training takes two
nodes, inference an array of four jobs. The servers end with it, so the workspace is gone afterwards.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

from rich.console import Console
from rich.table import Table

from flows.cli.terminal.ending import explain
from flows.demo.__main__ import last_months, show
from flows.presentation.wording import now
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.s3 import S3Server

SETTINGS = ("compute=batch", "train.workers=2", "infer.workers=4", "infer.shard_rows=256")


def main() -> None:
    os.environ.update(
        AWS_ACCESS_KEY_ID="none",
        AWS_SECRET_ACCESS_KEY="none",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    s3 = S3Server()
    os.environ["AWS_ENDPOINT_URL"] = s3.url
    batch = BatchServer(users=True)
    try:
        batch.register_all()
        os.environ.update(AWS_ENDPOINT_URL_BATCH=batch.url, AWS_ENDPOINT_URL_CLOUDWATCH_LOGS=batch.url)
        show(s3.new_workspace(), last_months(now()), *SETTINGS)
        _print_jobs(batch)
    finally:
        batch.stop()
        s3.stop()


def _print_jobs(batch: BatchServer) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("job", "queue", "kind", "status"):
        table.add_column(heading)
    table.add_column("tries", justify="right")
    for job in batch.jobs():
        kind = "1 container"
        if nodes := job.get("nodeProperties"):
            kind = f"{nodes['numNodes']} nodes"
        elif array := job.get("arrayProperties"):
            kind = f"array of {array['size']}"
        queue = job["jobQueue"].rpartition("/")[2]
        table.add_row(job["jobName"], queue, kind, job["status"], str(len(job.get("attempts", ())) or "-"))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    counts = Counter(call["operation"] for call in batch.calls())
    calls = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    console.print(f"calls: {calls}\nStop: make down", highlight=False)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(explain(error))
