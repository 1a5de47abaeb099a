"""The proof that an exported classification head judges as the trained one did."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.data.rows import QUERY
from tasks.foundation.errors import CodeError
from tasks.worker.accelerators import open_accelerator
from tasks.worker.formats.head import FOLDER, score
from tasks.worker.model.classify import classify
from tasks.worker.process.job import Job
from tasks.worker.search.proof import trained_queries
from tasks.worker.training.checkpoint import ModelParts

MOST_DIFFERENCE = 1e-3  # of a probability: vectors that are equal to a cosine of 0.9999 give no more


def head_difference(job: Job, parts: ModelParts, queries: pa.Table, exported: np.ndarray, folder: Path) -> float | None:
    """Return how far a probability of the exported head is from the trained head's, at most; None without a head.

    Where the head sees an item too, it sees the vector of another query: that of an item is proven by itself.

    Args:
        exported: the exported model's vectors of the queries, float32 (queries, width).

    Raises:
        CodeError: further than MOST_DIFFERENCE.
    """
    model = parts.model
    there = (folder / FOLDER).is_dir()  # not by an earlier version
    if model.classifier is None or not there or not queries.num_rows:
        return None
    ours = trained_queries(job, parts, queries)
    with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:
        trained = classify(model, accelerator, ours, ours[::-1])
    differences = np.abs(trained - score(folder, exported, exported[::-1]))
    worst = int(np.argmax(differences))
    if not differences[worst] <= MOST_DIFFERENCE:  # also where it is not a number
        raise CodeError(
            f"the exported classification head gives query {queries[QUERY][worst].as_py()!r} a probability that is "
            f"{differences[worst]:.6f} from that of the trained one; nothing was released"
        )
    return float(differences[worst])
