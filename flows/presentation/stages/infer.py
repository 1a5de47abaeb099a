"""Infer: number of vectors, speed, and cost.

Found by the stage's name, so it is alone.
"""

from flows.presentation.model import Section, facts
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import count, dollars
from tasks.contracts.outcomes import InferOutcome
from tasks.foundation.nouns import plural
from tasks.runs.sums import sums_of


def section(of: StageFacts) -> Section:
    """Return the vectors, their speed and their price, which includes attempts that failed."""
    value: InferOutcome = of.outcome
    price = sums_of(of.attempts, value.vectors).dollars_per_million_vectors
    rows = (
        ("vectors", count(value.vectors)),
        ("width", count(value.width)),
        ("texts per second", f"{value.texts_per_second:,.1f}"),
        ("items in the catalogue", count(value.catalogue.items) if value.catalogue else ""),
        ("items without a usable vector", count(value.bad)),
        ("vectors reused", count(value.vectors_reused)),
        ("shards", count(value.shards)),
        ("deltas over them", count(value.deltas)),
        ("bytes written", count(value.written)),
        ("shards reused", count(value.shards_reused)),
        ("accelerators", ", ".join(value.accelerators)),
        ("workers", str(of.plan.config.infer.workers) if of.plan else ""),
        ("dollars per million vectors", dollars(price) if price is not None else ""),
    )
    reused = f"an earlier attempt had made {value.shards_reused or 'none'} of them"
    return Section(
        plural(value.vectors, "vector"),
        (f"In {plural(value.shards, 'shard')}; {reused}.{_coverage(value)}",),
        tables=(facts(rows),),
        files=(("vectors", value.prefix), *((("items set apart", value.quarantine),) if value.quarantine else ())),
    )


def _coverage(value: InferOutcome) -> str:
    """Return a sentence on the items of the catalogue."""
    if not value.bad:
        return f" Every one of the {plural(value.catalogue.items, 'live item')} has its vector."
    return f" {count(value.bad)} of the {plural(value.catalogue.items, 'live item')} got no usable vector."
