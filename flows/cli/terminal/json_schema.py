"""The JSON schema of a command's --json output: types, and a meaning for each key.

A key's meaning is the description of its field; keys with one meaning in all records have it here, once. Records
check themselves; nothing is checked here.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter

from tasks.foundation.records import Record

MEANINGS = {
    "accelerator": "accelerator: cpu, cuda or xla",
    "action": "action that was taken",
    "at": "time, ISO 8601 in UTC",
    "attempt": "number of the attempt, from 1",
    "attempts": "number of attempts",
    "backfill": "backfill as it is now",
    "backfills": "backfills in the order of their last start",
    "began_at": "begin, ISO 8601 in UTC",
    "branch": "lineage that spans are trained on; null: none was needed",
    "bytes": "size in bytes",
    "checkpoint": "checkpoint",
    "column": "name of the column",
    "config_file": "path of the configuration file; null: base.yaml alone",
    "created_at": "time at which it was made, ISO 8601 in UTC",
    "deadline": "time at which it is late, ISO 8601 in UTC",
    "deployments": "deployments on the server",
    "device": "name of the device",
    "done": "true: it has a result",
    "embedded_at": "end of infer, ISO 8601 in UTC; null: not reached",
    "ended_at": "end, ISO 8601 in UTC; null: not over",
    "evaluated_at": "end of evaluate, ISO 8601 in UTC; null: not reached",
    "expected_dollars": "expected cost in dollars; null: not known",
    "failed": "number of failures",
    "failure": "failure class; null: no failure",
    "file": "path of the file",
    "files": "number of files",
    "findings": "findings, in the order of the examination",
    "first": "first span of the range",
    "flow_run": "id of the Prefect flow run; empty: none",
    "folders": "folders that nothing needs",
    "found": "observation in words",
    "grace_minutes": "minutes without a waiting process after which a job is ended",
    "hits": "hits, best first",
    "host": "host, by its instance id or name",
    "hosts": "hosts",
    "id": "id",
    "item_id": "id of the item",
    "items": "number of items",
    "items_after": "items of the later release",
    "items_before": "items of the earlier release",
    "job": "id of the AWS Batch job",
    "jobs": "jobs that were examined",
    "last": "last span of the range",
    "left": "left side of the comparison",
    "lifted_at": "time at which it was lifted, ISO 8601 in UTC; null: not lifted",
    "lifted_by": "user and machine that lifted it; null: not lifted",
    "lineage": "name of the lineage",
    "lineages": "lineages, each at its last checkpoint",
    "message": "message of the failure; empty: none",
    "metric": "name of the metric",
    "metrics": "metrics by name",
    "misses": "graphs that the cache's manifest does not name",
    "model": "model of the release",
    "model_prefix": "key of the model's folder",
    "model_version": "model version",
    "name": "name",
    "number": "number of the release",
    "observed": "observed number; null: none",
    "overrides": "decisions of people to release although gates refused",
    "page": "address of the page; empty: not known",
    "partitions": "number of partitions",
    "passed": "true: passed",
    "precision": "arithmetic: bf16, bf16-weights or fp32",
    "prefix": "key of the folder",
    "query": "text of the query",
    "queues": "job queues",
    "reason": "reason in words",
    "relative_difference": "difference divided by the larger magnitude",
    "release": "number of the release; null: none",
    "released_at": "time of the release, ISO 8601 in UTC; null: not reached",
    "report": "report",
    "right": "right side of the comparison",
    "rows": "number of rows",
    "run_key": "key of the run; its files are in runs/<run key>/",
    "scheduled_at": "scheduled time, ISO 8601 in UTC; null: started by hand",
    "score": "cosine of query and item",
    "seconds": "seconds",
    "sentence": "explanation in words",
    "sentences": "explanations in words",
    "severity": "critical: a failure stops; warning: it is reported",
    "sha256": "SHA-256",
    "slices": "metrics by slice",
    "span": "span, for example 2026-W47",
    "spans": "spans, oldest first",
    "stage": "stage",
    "stages": "stages in their order",
    "stale": "true: the released vectors are older than allowed",
    "standing": "standing against the deadline",
    "started_at": "start, ISO 8601 in UTC",
    "state": "state",
    "status": "status at AWS Batch",
    "step": "global step along the lineage",
    "strikes": "suspicions of the host",
    "succeeded": "attempts that succeeded",
    "target": "target as configured",
    "text": "text of the item",
    "timezone": "time zone by its IANA name; null: no schedule",
    "total_bytes": "size of all in bytes",
    "trained": "true: it is trained in this backfill",
    "trained_at": "end of train, ISO 8601 in UTC; null: not reached",
    "ui_url": "address of the Prefect server",
    "unreadable": "records that can't be read",
    "updated_at": "time of the last change, ISO 8601 in UTC",
    "urgent": "true: a person should act",
    "url": "address",
    "validated_at": "end of validate, ISO 8601 in UTC; null: not reached",
    "value": "value; null: not defined",
    "vectors": "number of vectors",
    "vectors_prefix": "key of the vectors' folder",
    "verdicts": "verdicts of the gates",
    "version": "version of this record's format",
    "warned": "number of warnings",
    "way_out": "command or step that solves it",
    "why": "reason in words",
    "window": "spans that are trained together",
    "work_pool": "Prefect work pool",
    "workers": "worker processes",
    "workspace": "address of the workspace",
}


def json_schema(*kinds: type[Record]) -> dict[str, Any]:
    """Return the JSON schema of a record, or of any of several."""
    schema = TypeAdapter(reduce(or_, kinds)).json_schema(mode="serialization", by_alias=True)
    for _, name, value in keys(schema):
        if "description" not in value and name in MEANINGS:
            value["description"] = MEANINGS[name]
    return schema


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the keys of a schema and of all records inside it: title of the record, name of the key, its own schema."""
    for each in (schema, *schema.get("$defs", {}).values()):
        for name, value in each.get("properties", {}).items():
            yield each["title"], name, value
