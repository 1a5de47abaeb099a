"""The metrics: one table of their names and needs.

The computations are in tasks/quality: row_metrics.py, label_metrics.py and vector_metrics.py.
"""

import enum
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, WithJsonSchema


class Family(enum.StrEnum):
    """Kinds of metric, by the data that they are computed from."""

    ranking = "ranking"  # the rank of each query's own item; other relevant items are ignored
    likelihood = "likelihood"  # the cross entropy of each query's own item among the same items
    classification = "classification"  # the class of each row
    label = "label"  # the value of each row in a head's column
    vectors = "vectors"  # a model's vectors of the corpus; one number for each model
    compatibility = "compatibility"  # the challenger's vectors next to the champion's; one number

    @property
    def of_rows(self) -> bool:
        """True: the number is computed row by row, so it exists for any choice of rows."""
        return self in (Family.ranking, Family.likelihood, Family.classification, Family.label)


class Metric(NamedTuple):
    """One metric of an evaluation. `head`: the section of `heads` without which it is not measured."""

    family: Family
    better: Literal["higher", "lower"] = "higher"
    head: Literal["contrastive", "classification", "multiclass", "regression"] | None = None

    @property
    def sign(self) -> Literal[1, -1]:
        """1 if higher is better, else -1: the better of two values has the larger product with it."""
        return 1 if self.better == "higher" else -1


METRICS = {
    "recall@1": Metric(Family.ranking),
    "recall@10": Metric(Family.ranking),
    "recall@100": Metric(Family.ranking),
    "mrr@10": Metric(Family.ranking),
    "ndcg@10": Metric(Family.ranking),
    "loss": Metric(Family.likelihood, better="lower", head="contrastive"),
    "accuracy": Metric(Family.classification, head="classification"),
    "macro_f1": Metric(Family.classification, head="classification"),
    "auc": Metric(Family.classification, head="classification"),
    "log_loss": Metric(Family.classification, better="lower", head="classification"),
    "calibration_error": Metric(Family.classification, better="lower", head="classification"),
    "multiclass_accuracy": Metric(Family.label, head="multiclass"),
    "multiclass_macro_f1": Metric(Family.label, head="multiclass"),
    "mae": Metric(Family.label, better="lower", head="regression"),
    "rmse": Metric(Family.label, better="lower", head="regression"),
    "pearson": Metric(Family.label, head="regression"),
    "effective_rank": Metric(Family.vectors),
    "mean_cosine": Metric(Family.vectors, better="lower"),
    "nan_share": Metric(Family.vectors, better="lower"),
    "duplicate_share": Metric(Family.vectors, better="lower"),
    "same_item_cosine": Metric(Family.compatibility),
    "neighbour_overlap@10": Metric(Family.compatibility),
}


def least_competitors(metric: str) -> int:
    """Return the fewest items that must compete with a row's own item; a row with fewer does not count.

    That is the k of a ranking metric, as in recall@k: among k items any model has the own one among the first k. The
    loss needs one.
    """
    family = METRICS[metric].family
    if family is Family.ranking:
        return int(metric.partition("@")[2] or 1)
    return 1 if family is Family.likelihood else 0


def names_of(family: Family) -> tuple[str, ...]:
    """Return the names of a family's metrics."""
    return tuple(name for name, metric in METRICS.items() if metric.family is family)


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"unknown metric; use one of {', '.join(METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(METRICS)})]
