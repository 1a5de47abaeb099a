"""Infer: how many vectors, how fast, and what they cost."""

from flows.presentation.model import Section, facts
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import count, dollars, plural
from tasks.contracts.outcomes import InferOutcome
from tasks.runs.ledger import totals


def section(of: StageFacts) -> Section:
    """Return the vectors, their speed and their price, which includes attempts that failed."""
    value: InferOutcome = of.outcome
    price = totals(of.attempts, value.vectors).dollars_per_million_vectors
    rows = (
        ("vectors", count(value.vectors)),
        ("width", count(value.width)),
        ("texts per second", f"{value.texts_per_second:,.1f}"),
        ("shards", count(value.shards)),
        ("shards reused", count(value.shards_reused)),
        ("workers", str(of.plan.config.infer.workers) if of.plan else ""),
        ("dollars per million vectors", dollars(price) if price is not None else ""),
    )
    reused = f"an earlier attempt had made {value.shards_reused or 'none'} of them"
    return Section(
        plural(value.vectors, "vector"),
        (f"In {plural(value.shards, 'shard')}; {reused}.",),
        tables=(facts(rows),),
        files=(("vectors", value.prefix),),
    )
