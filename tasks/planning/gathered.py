"""The vectors of a training step that every worker needs: the bytes that one all-gather of each kind brings."""

from configs.schema.training import ContrastiveHead

NUMBER_BYTES = 4  # vectors and losses are float32 in every precision


def gathered_bytes(head: ContrastiveHead | None, rows: int, negatives: int, width: int) -> int:
    """Return the bytes of the global batch's vectors that a step gathers; as many gradients are scattered back.

    The contrastive loss gathers all items, their hard negatives and, if symmetric, all queries; again at each
    narrower width.

    Args:
        rows: pairs of the global batch.
        negatives: hard negatives of each pair; 0 while a lineage has no release.
        width: numbers of an embedding.
    """
    if head is None:
        return 0
    return rows * (1 + negatives + head.symmetric) * (width + sum(head.matryoshka)) * NUMBER_BYTES
