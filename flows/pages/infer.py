"""The page of infer: how many vectors, how fast, what they cost, and where they lie."""

from __future__ import annotations

from flows.pages.account import dollars, foot, head
from flows.pages.markdown import counted, table
from infra.store import Store
from tasks import ledger
from tasks.contracts import InferOutcome, RunPlan, Stage


def page(store: Store, plan: RunPlan, value: InferOutcome) -> str:
    """Markdown. Raises StoreError if the ledger is not readable."""
    cost = sum(record.cost for record in ledger.of_stage(store, plan.run_key, Stage.infer))
    sentence = (
        f"In {counted(value.shards, 'shard')}, of which an earlier attempt had made {value.shards_reused or 'none'}."
    )
    lines = head(plan, counted(value.vectors, "vector"), sentence)
    lines += table(
        ("", ">value"),
        [
            ("vectors", f"{value.vectors:,}"),
            ("width", f"{value.width:,}"),
            ("texts per second", f"{value.texts_per_second:,.1f}"),
            ("shards", f"{value.shards:,}"),
            ("of them reused", f"{value.shards_reused:,}"),
            ("workers", str(plan.config.infer.workers)),
            ("dollars per million vectors", dollars(cost / value.vectors * 1e6) if value.vectors else ""),
        ],
    )
    return "\n".join([*lines, *foot(store, plan, Stage.infer, {"vectors": value.prefix})])
