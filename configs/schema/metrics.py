"""The metrics: one table of their names and what each needs.

How each is computed is in tasks/measures/row_metrics.py.
"""

import enum
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator


class Family(enum.StrEnum):
    """What a metric is computed from."""

    ranking = "ranking"  # the rank of each query's own item among all items
    classification = "classification"  # the class of each row


class Metric(NamedTuple):
    """One metric of the holdout. `head`: the section of `heads` without which it is not measured."""

    family: Family
    head: Literal["classification"] | None


METRICS = {
    "recall@1": Metric(Family.ranking, None),
    "recall@10": Metric(Family.ranking, None),
    "recall@100": Metric(Family.ranking, None),
    "mrr@10": Metric(Family.ranking, None),
    "ndcg@10": Metric(Family.ranking, None),
    "accuracy": Metric(Family.classification, "classification"),
    "macro_f1": Metric(Family.classification, "classification"),
    "auc": Metric(Family.classification, "classification"),
}


def names_of(family: Family) -> tuple[str, ...]:
    """Return the names of a family's metrics."""
    return tuple(name for name, metric in METRICS.items() if metric.family is family)


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"unknown metric; use one of {', '.join(METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_known)]
