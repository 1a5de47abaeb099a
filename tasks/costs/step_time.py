"""Operations of an encoder, bytes and seconds of a step's collectives, and the speed of several nodes; all by formula.

Operations follow Narayanan et al. 2021 (arXiv:2104.04473, section 3), without the head over a vocabulary: forward and
backward of a sequence are 72 L h^2 s (1 + s / 6h). Projections, heads and interactions are small beside them.
"""

import math

from tasks.contracts.costs import Exchange
from tasks.costs.published import Machine, published
from tasks.planning.preflight_encoder import EncoderSize


def operations(size: EncoderSize, tokens: float, sequence: int, training: bool) -> float:
    """Return the operations (multiplications and additions) of an encoder over `tokens`.

    A token takes 8 h^2 in the attention's projections, 4 h i in the feed-forward part, 4 s h in the attention itself;
    the backward pass takes twice the forward pass.

    Args:
        sequence: s, tokens of a packed sequence, of which each attends to all.
        training: True for forward and backward.
    """
    hidden = size.hidden
    forward = tokens * size.layers * (8 * hidden**2 + 4 * hidden * size.intermediate + 4 * sequence * hidden)
    return 3 * forward if training else forward


def efficiency(nodes: int, batch_grows: bool) -> float:
    """Return the speed of `nodes` as a share of one node's times their number, by the published figures.

    With a batch that grows, the loss is the same for each doubling. With one batch for all, a part of a step does not
    shrink with the nodes (Amdahl): 1 / (1 + f (n - 1)).
    """
    known = published().scaling
    if batch_grows:
        return known.same_batch_a_node.efficiency ** (math.log2(nodes) / math.log2(known.nodes))
    constant = (1 / known.same_batch.efficiency - 1) / (known.nodes - 1)
    return 1 / (1 + constant * (nodes - 1))


def exchange(gradients: int, vectors: int, machine: Machine, nodes: int) -> Exchange | None:
    """Return the collectives of a step as rings; None if the nodes have no known network.

    An all-reduce over a ring of n sends 2 (n - 1) / n of the bytes through each link, an all-gather and a
    reduce-scatter half of it each (Patarasu and Yuan 2009). So vectors that are gathered, and whose gradients are
    scattered, count as gradients do.

    Args:
        gradients: bytes of all gradients.
        vectors: bytes of the global batch's vectors that are gathered.
    """
    whole, share = gradients + vectors, published().scaling.all_reduce.efficiency
    if nodes > 1 and machine.network_gbit_s is None:
        return None
    inside = _ring(machine.devices) * whole / (machine.link_gb_s * 1e9 * share) if machine.link_gb_s else 0.0
    network = machine.network_gbit_s
    between = _ring(nodes) * whole / (network / 8 * 1e9 * share) if network else 0.0
    return Exchange(gradient_bytes=gradients, vector_bytes=vectors, inside_seconds=inside, between_seconds=between)


def _ring(members: int) -> float:
    return 2 * (members - 1) / members
