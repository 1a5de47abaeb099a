"""The speed of machines, and bytes and seconds of a step's collectives.

A speed is fitted on a workspace's ledger, else published. A measurement is reduced to one machine alone; the share
of its peak (MFU) carries to other sizes of the same chip.
"""

import datetime as dt
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from configs.instances import Instance, machine_of
from tasks.contracts.costs import Basis
from tasks.foundation.records import Record
from tasks.laboratory.published import PublishedRow, published
from tasks.preflight.encoder_size import Arithmetic, Work, operations


class Speed(Record):
    """The speed of one machine, alone."""

    operations_per_second: float = Field(description="multiplications and additions a second")
    mfu: float | None = Field(description="share of the machine's peak; null: its peak is not known")
    basis: Basis = Field(description="kind of its source, as in StageCost")
    source: str = Field(description="origin of the speed, in words")


class Exchange(Record):
    """The collectives of one step, inside each node first, then between the nodes.

    Gradients are summed; vectors of the batch are gathered, and their gradients scattered.
    """

    gradient_bytes: int = Field(description="bytes of all gradients, which each worker holds")
    vector_bytes: int = Field(description="bytes of the global batch's vectors that are gathered")
    inside_seconds: float = Field(description="over the links of a node")
    between_seconds: float = Field(description="over the network between nodes; 0: one node")

    @property
    def seconds(self) -> float:
        return self.inside_seconds + self.between_seconds


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


def exchange(gradients: int, vectors: int, machine: Instance, nodes: int) -> Exchange | None:
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


POINTS = 5  # newest attempts that a fit takes the median of


class Point(NamedTuple):
    """A measured speed, reduced to one machine alone."""

    work: Work
    instance: str
    precision: Arithmetic
    length: int
    hidden: int
    layers: int
    operations_per_second: float
    at: dt.datetime
    source: str
    own: bool = False  # measured in this workspace


class Wanted(NamedTuple):
    """The work that a speed is wanted for."""

    work: Work
    instance: str
    precision: Arithmetic
    length: int
    hidden: int
    layers: int


def speed_of(wanted: Wanted, points: Sequence[Point]) -> Speed | None:
    """Return the speed of the nearest points: the median of the newest own ones, or the newest published one.

    None if neither this machine was measured nor its peak is known.
    """
    usable = [point for point in points if point.instance == wanted.instance or _scaled(point, wanted) is not None]
    if not usable:
        return None
    best = min(_distance(point, wanted) for point in usable)
    near = sorted((each for each in usable if _distance(each, wanted) == best), key=lambda each: each.at)
    taken = near[-POINTS:] if near[-1].own else near[-1:]
    speed = statistics.median(_scaled(each, wanted) or each.operations_per_second for each in taken)
    machine = machine_of(wanted.instance)
    return Speed(
        operations_per_second=speed,
        mfu=speed / machine.peak(wanted.precision) if machine else None,
        basis=_basis(taken[-1], wanted),
        source=_source(taken, wanted),
    )


def published_points(rows: Iterable[PublishedRow] | None = None) -> list[Point]:
    """Return the published rows as points; by default all of configs/published.yaml."""
    return [_point_of(row) for row in (published().rows if rows is None else rows)]


def predicted(row: PublishedRow, points: Sequence[Point]) -> float | None:
    """Return the sequences a second that `points` predict for a published row; None if they can't."""
    size = published().models[row.model]
    wanted = Wanted(row.work, row.instance, row.precision, row.length, size.hidden, size.layers)
    speed = speed_of(wanted, points)
    if speed is None:
        return None
    each = operations(size, row.length, row.length, row.work == "train")
    return speed.operations_per_second * row.nodes * efficiency(row.nodes, row.batch_grows) / each


def _point_of(row: PublishedRow) -> Point:
    size = published().models[row.model]
    each = operations(size, row.length, row.length, row.work == "train")
    alone = row.sequences_per_second * each / row.nodes / efficiency(row.nodes, row.batch_grows)
    at = dt.datetime.combine(row.date, dt.time(), dt.UTC)
    what = f"{row.name} ({row.source}, {row.date})"
    return Point(row.work, row.instance, row.precision, row.length, size.hidden, size.layers, alone, at, what)


def _scaled(point: Point, wanted: Wanted) -> float | None:
    """Return the speed of a point on the wanted machine, at the same share of the peak; None if one is not known."""
    if point.instance == wanted.instance and point.precision == wanted.precision:
        return point.operations_per_second
    then, now = machine_of(point.instance), machine_of(wanted.instance)
    if then is None or now is None:
        return None
    return point.operations_per_second / then.peak(point.precision) * now.peak(wanted.precision)


def _distance(point: Point, wanted: Wanted) -> tuple[float, ...]:
    """Return the differences, the one that matters most first."""
    return (
        point.work != wanted.work,
        _chip(point.instance) != _chip(wanted.instance),
        point.precision != wanted.precision,
        not point.own,
        round(abs(math.log2(point.length / wanted.length)), 1),
        point.instance != wanted.instance,
        (point.hidden, point.layers) != (wanted.hidden, wanted.layers),
        round(abs(math.log2(point.hidden / wanted.hidden)), 1),
    )


def _chip(instance: str) -> str:
    machine: Instance | None = machine_of(instance)
    return machine.chip if machine else instance


def _basis(point: Point, wanted: Wanted) -> Basis:
    if point.own:
        return "fitted"
    alike = (point.work, _chip(point.instance), point.precision) == (
        wanted.work, _chip(wanted.instance), wanted.precision
    )  # fmt: skip
    near = all(0.5 <= one / other <= 2 for one, other in ((point.length, wanted.length), (point.hidden, wanted.hidden)))
    return "published" if alike and near else "assumed"


def _source(taken: Sequence[Point], wanted: Wanted) -> str:
    newest = taken[-1]
    if newest.own:
        return f"{len(taken)} earlier attempt{'s' if len(taken) > 1 else ''} of this workspace"
    differs = [
        f"{name} {theirs} for {ours}"
        for name, theirs, ours in (
            ("work", newest.work, wanted.work),
            ("machine", newest.instance, wanted.instance),
            ("precision", newest.precision, wanted.precision),
            ("length", newest.length, wanted.length),
            ("width", newest.hidden, wanted.hidden),
        )
        if theirs != ours
    ]
    return newest.source + (f", with {', '.join(differs)}" if differs else "")
