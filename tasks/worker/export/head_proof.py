"""Compares the outputs of an exported model's heads with the trained heads."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.data.rows import QUERY
from tasks.foundation.errors import CodeError
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.export.head import exported_outputs, score
from tasks.worker.model.classify import classify, label_outputs
from tasks.worker.process.job import Job
from tasks.worker.search.proof import trained_vectors
from tasks.worker.training.checkpoint import ModelParts

MOST_DIFFERENCE = 1e-3  # probability; vectors with a cosine of 0.9999 differ by less
MOST_RELATIVE_DIFFERENCE = 1e-3  # label head's output, as a share of the largest output


def head_difference(job: Job, parts: ModelParts, queries: pa.Table, exported: np.ndarray, folder: Path) -> float | None:
    """Return the largest difference between probabilities of the exported and trained head; None without a head.

    If the head sees an item too, it gets the vector of another query: items' vectors are checked elsewhere.

    Args:
        exported: the exported model's vectors of the queries, float32 (queries, width).

    Raises:
        CodeError: the difference is above MOST_DIFFERENCE.
    """
    model = parts.model
    if model.classifier is None or not queries.num_rows:
        return None
    ours = trained_vectors(job, parts, queries, "query")
    with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:  # as the vectors of the proof
        trained = classify(model, accelerator, ours, ours[::-1])
    differences = np.abs(trained - score(folder, exported, exported[::-1]))
    worst = int(np.argmax(differences))
    if not differences[worst] <= MOST_DIFFERENCE:  # true for NaN too
        raise CodeError(
            f"the exported classification head gives query {queries[QUERY][worst].as_py()!r} a probability that is "
            f"{differences[worst]:.6f} from that of the trained one; nothing was released"
        )
    return float(differences[worst])


def label_difference(
    job: Job, parts: ModelParts, queries: pa.Table, exported: np.ndarray, folder: Path
) -> float | None:
    """Return the largest difference between exported and trained label heads; arguments as above.

    The difference is a share of the largest output; None without a label head.

    Raises:
        CodeError: the difference is above MOST_RELATIVE_DIFFERENCE.
    """
    model, found = parts.model, []
    there = [name for name in model.shape.label_heads if (folder / name).is_dir()]
    if not there or not queries.num_rows:
        return None
    ours = trained_vectors(job, parts, queries, "query")
    for name in there:
        with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:
            trained = label_outputs(model, name, accelerator, ours, ours[::-1])
        differences = np.abs(trained - exported_outputs(folder, name, exported, exported[::-1])).max(axis=1)
        worst, largest = int(np.argmax(differences)), max(float(np.abs(trained).max()), 1e-9)
        found.append(float(differences[worst]) / largest)
        if not found[-1] <= MOST_RELATIVE_DIFFERENCE:  # true for NaN too
            raise CodeError(
                f"the exported head {name} gives query {queries[QUERY][worst].as_py()!r} an output that is "
                f"{differences[worst]:.6f} from that of the trained one; nothing was released"
            )
    return max(found)
