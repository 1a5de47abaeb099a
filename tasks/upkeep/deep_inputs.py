"""The inputs of `millrace doctor --deep`: synthetic rows, a very small model, the machines of the user.

They are small on purpose: the aim is to test devices, network, compiler and workspace, not speed.
"""

import datetime as dt
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from configs.load import load_config
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import commit
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.workspace import ROWS
from tasks.data.rows import CORE, ROWS_KIND

ROWS_PER_WORKER = 32
_MODEL = (
    "model.scratch={vocab_size: 400, hidden_size: 64, layers: 2, attention_heads: 2, intermediate_size: 128, "
    "max_tokens: 64}",
    "train.max_tokens={query: 16, item: 16}",
    "train.sequence_tokens=32",
    "train.log_every_steps=1",
    "evaluate.holdout_share=0.2",
    "evaluate.gates=[]",
    "release.gates=[]",
    "infer.max_tokens=16",
    "infer.sequence_tokens=32",
    "infer.batch_sequences=16",
)
_OF_THE_MACHINES = ("pipeline", "compute", "accelerator", "seed", "health", "warmup", "compiler", "batch", "cost")
_COLOURS = ("red", "blue", "green", "black", "white", "grey", "pink")
_THINGS = ("shoe", "lamp", "chair", "kettle", "towel", "knife", "scarf", "mirror", "clock", "bag")


def settings(config: Config, lineage: str, workers: int) -> Config:
    """Return the settings for one worker count: the user's machines with `workers`, all else synthetic.

    Each job is tried once, so that the user sees every failure.
    """
    base = load_config(None, _MODEL)
    train = base.train.model_copy(
        update={
            "workers": workers,
            "batch_rows": ROWS_PER_WORKER * workers,
            "compute": config.train.compute,
            "precision": config.train.precision,
            "watchdog_seconds": config.train.watchdog_seconds,
        }
    )
    changes: dict[str, object] = {name: getattr(config, name) for name in _OF_THE_MACHINES}
    changes |= {
        "lineage": lineage,
        "train": train,
        "infer": base.infer.model_copy(update={"precision": config.infer.precision}),
        "retry": base.retry.model_copy(update={"attempts": 1}),
    }
    return Config.model_validate(base.model_copy(update=changes).tree())


def write_rows(store: Store, run_key: str, span: str, count: int) -> RowsRef:
    """Write rows as validate would in the run `run_key`, and return their reference.

    Raises:
        StoreError: the workspace can't be written.
    """
    numbers = range(count)
    thing = [_THINGS[number * 7 % len(_THINGS)] for number in numbers]
    colour = [_COLOURS[number * 3 % len(_COLOURS)] for number in numbers]
    table = pa.table(
        {
            "row_id": [f"{span}-{number}" for number in numbers],
            "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * count, CORE["time"]),
            "query": [f"want a {colour[number]} {thing[number]} number {number}" for number in numbers],
            "item": [f"{colour[number]} {thing[number]} {number}" for number in numbers],
            "item_id": [f"{span}-{number}" for number in numbers],
            "label": pa.array([1.0] * count),
        }
    )
    prefix = ROWS.key(run=run_key, folder=span)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        pq.write_table(table, Path(folder) / "part-00000.parquet")
        commit(store, prefix, Path(folder), ROWS_KIND, {"span": span, "version": 1, "rows": count})
    return RowsRef(span=SpanRef(name=span, version=1), prefix=prefix, rows=count)
