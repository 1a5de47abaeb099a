"""AWS Batch and S3 on loopback ports, and the numbers of a run to compare."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.base import Store
from infra.store.manifest import read_manifest
from tasks.runs import releases
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.s3 import S3Server


class Cloud(NamedTuple):
    batch: BatchServer
    s3: S3Server


@contextlib.contextmanager
def open_cloud(s3: S3Server) -> Iterator[Cloud]:
    """AWS Batch and a bucket server, with the queues and definitions of the default configuration.

    Inside the block both are found in place of AWS, in this process and in those that it starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        s3.forget()
        patch.setenv("AWS_ENDPOINT_URL", s3.url)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        batch = BatchServer(users=True)
        try:
            batch.register_all()
            for service in ("BATCH", "CLOUDWATCH_LOGS"):
                patch.setenv(f"AWS_ENDPOINT_URL_{service}", batch.url)
            yield Cloud(batch, s3)
        finally:
            batch.stop()


class Side(NamedTuple):
    """One of two runs that have to come out alike; `output` is what `millrace run --json` printed."""

    store: Store
    output: dict[str, Any]

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files of the trained checkpoint that hold numbers."""
        result = json.loads(self.store.read(f"runs/{self.output['report']['run_key']}/train/result.json"))
        manifest = read_manifest(self.store, result["outcome"]["checkpoint"]["prefix"])
        return {entry.name: entry.sha256 for entry in manifest.files if entry.name.endswith(".safetensors")}

    def vectors(self) -> pa.Table:
        """The released vectors, in the order of their files, without the model's version."""
        prefix = releases.read(self.store, self.output["report"]["release"]).vectors_prefix
        names = [entry.name for entry in read_manifest(self.store, prefix).files]
        table = pa.concat_tables(pq.read_table(self.store.local(f"{prefix}/{name}")) for name in names)
        return table.drop_columns(["model_version"])
