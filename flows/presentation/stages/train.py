"""Train: losses and holdout metrics over the steps, speed, precision, graphs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from configs.instances import machine_of
from configs.schema.config import Config
from configs.schema.gates import Family, names_of
from configs.schema.training import AUTO
from flows.presentation.figures import curves
from flows.presentation.model import Cell, Figure, Section, Table, facts, table
from flows.presentation.stages import warmup
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import count, difference, number, share
from tasks.contracts.outcomes import HealthOutcome, TrainOutcome
from tasks.contracts.references import CurvePoint
from tasks.contracts.stages import Stage, compute_of, place_of
from tasks.contracts.usage import CheckpointUse, Communication, DeviceUse, EfaUse, MinedNegatives, RateUse, TokenUse
from tasks.foundation.nouns import plural
from tasks.preflight.encoder_size import arithmetic_of, encoder_operations, encoder_size

# Groups of holdout metrics that share a figure.
ON_THE_HOLDOUT = {
    "Retrieval": (*names_of(Family.ranking), *names_of(Family.likelihood)),
    "Classification": names_of(Family.classification),
    "Labels": names_of(Family.label),
}
HOLDOUT = "during training, on a part of the holdout"
SEEN = "Cross-validated on rows that the encoder was trained on, so better than on new rows"


def section(of: StageFacts) -> Section:
    """Return curves, speed and steps, the holdout before and after, and every point of the curves."""
    value: TrainOutcome = of.outcome
    config = of.plan.config if of.plan else None
    speed: list[tuple[str, str | Cell]] = [
        ("steps of the lineage", f"{count(value.first_step)} to {count(value.last_step)}"),
        ("resumed at step", "not at all" if value.resumed_at_step is None else count(value.resumed_at_step)),
        ("pairs per second", f"{value.pairs_per_second:,.1f}"),
        *_rate(value.learning_rate),
        *_communication(value.communication, config.train.workers if config else None),
        *(_arithmetic(training_use(config, value, of.health), config.health.matmul_size) if config else ()),
        *_tokens(value.tokens),
        *_mined(value.mined),
        *_checkpoints(value.checkpoints),
        ("workers", str(config.train.workers) if config else ""),
        ("accelerator", f"{config.accelerator}, compute {compute_of(config, Stage.train)}" if config else ""),
        ("precision", value.precision),
        ("model", Cell(value.model_version, code=True)),
        *([("queries alone, for the items of", Cell(value.items.version, code=True))] if value.items else []),
        *_against_forgetting(value),
    ]
    return Section(
        f"{plural(value.last_step - value.first_step, 'step')} over {plural(value.rows_trained, 'pair')}",
        (_sentence(value), *_head(value), *_label_heads(value), *_warnings(value)),
        figures=tuple(_figures(value)),
        tables=(facts(speed), *_before_and_after(value.curve), *_device_use(value.device_use),
                *_points("Losses", value.losses), *_points("Holdout metrics", value.curve),
                *_points("Development metrics", value.development)),
        parts=warmup.compiled_parts(value.graphs, value.environment),
        files=(("checkpoint", value.checkpoint.prefix),),
    )  # fmt: skip


def _sentence(value: TrainOutcome) -> str:
    if not value.losses:
        return "No loss was logged: train.log_every_steps is more than the number of steps."
    first, last = value.losses[0].metrics, value.losses[-1].metrics
    return f"The loss went from {number(first['loss'])} to {number(last['loss'])}."


def _warnings(value: TrainOutcome) -> tuple[str, ...]:
    uses = (value.communication, value.learning_rate)
    return tuple(f"{use.warning}." for use in uses if use is not None and use.warning)


def _rate(use: RateUse | None) -> Iterator[tuple[str, str | Cell]]:
    """Yield the learning rate at the last step, marked if too low."""
    if use is not None:
        said = f"{use.rate:.3g}, {share(use.share)} of its peak"
        yield "learning rate at the last step", Cell(said, "!", "refused") if use.warning else said


class ArithmeticUse(NamedTuple):
    """The encoder's operations a second of all workers, and their share of two limits."""

    operations_per_second: float
    peak_share: float | None  # share of the published peak; None: none is published, as for a local worker
    bare_share: float | None  # share of the bare matrix products that health timed on the workers; None: not timed


def training_use(config: Config, outcome: TrainOutcome, health: HealthOutcome | None) -> ArithmeticUse | None:
    """Return the use of the devices by a training, padding included; None if its time or encoder is not known.

    Args:
        health: outcome of the same run's health; None: not known.
    """
    size, tokens, took = encoder_size(config), outcome.tokens, outcome.checkpoints
    if size is None or tokens is None or took is None or not took.training_seconds:
        return None
    speed = encoder_operations(config, Stage.train, size, tokens.computed, 0) / took.training_seconds
    place = place_of(config, Stage.train)
    machine = machine_of(place.instance)
    peak = machine.peak(arithmetic_of(config, "train", place)) * place.machines if machine is not None else None
    bare = 1e9 * sum(health.matmul_gflops) if health is not None else 0.0
    return ArithmeticUse(speed, speed / peak if peak else None, speed / bare if bare else None)


def _arithmetic(use: ArithmeticUse | None, size: int) -> Iterator[tuple[str, str]]:
    """Yield the operations a second of the encoder, with their share of the published peak (MFU) and of a bare product.

    Args:
        size: rows and columns of the bare product's matrices.
    """
    if use is not None:
        peak = f"{share(use.peak_share)} of the published peak" if use.peak_share is not None else "no published peak"
        yield "operations a second", f"{number(use.operations_per_second / 1e12)} TFLOP/s, {peak}"
    if use is not None and use.bare_share is not None:
        yield "share of the bare matrix rate", f"{share(use.bare_share)}, by health's product of {count(size)} rows"


def _tokens(use: TokenUse | None) -> Iterator[tuple[str, str]]:
    """Yield the share of tokens that were not padding, and the number of truncated tokens."""
    if use is not None:
        yield "tokens of texts among those computed", share(use.real / use.computed)
        yield "tokens cut for want of room", f"{count(use.cut)} of {count(use.real + use.cut)}"


def _communication(use: Communication | None, workers: int | None) -> Iterator[tuple[str, str | Cell]]:
    """Yield the communication share of a step, marked if too high, and the scaling efficiency that it leaves."""
    if use is not None:
        how = "" if use.measured else ", estimated from the rates of health"
        said = f"{share(use.share)} of {use.step_seconds:.3g} s{how}"
        yield "communication in a step", Cell(said, "!", "refused") if use.warning else said
        of = f" of {plural(workers, 'worker')} alone" if workers else ""
        least = "" if use.measured else "at least "
        yield "scaling efficiency", f"{least}{share(use.efficiency)}{of}, by communication"


def _against_forgetting(value: TrainOutcome) -> Iterator[tuple[str, str]]:
    if value.rows_replayed:
        part = share(value.rows_replayed / value.rows_trained)
        yield "pairs of earlier spans", f"{count(value.rows_replayed)} of {count(value.rows_trained)} ({part})"
    if value.development:
        kept = value.last_step if value.kept_step is None else value.kept_step
        yield "step whose weights are kept", f"{count(kept)}, the best by the development rows"


def _mined(mined: MinedNegatives | None) -> Iterator[tuple[str, str]]:
    """Yield the hard negatives and the cost of mining."""
    if mined is not None:
        of = f"{count(mined.negatives)} for {plural(mined.pairs, 'pair')}, of {plural(mined.items, 'item')}"
        yield "hard negatives", f"{of}, mined from release {mined.release}"
        cost = f"{plural(mined.embedded, 'text')} embedded" if mined.embedded else "none: they were kept from before"
        yield "cost of mining", f"{cost}, {mined.seconds:,.1f} s"


def _checkpoints(use: CheckpointUse | None) -> Iterator[tuple[str, str]]:
    """Yield the checkpoint interval, its reasons, and its cost."""
    if use is None:
        return
    interval = f" ({use.seconds:,.0f} s)" if use.every == AUTO and use.seconds is not None else ""
    yield "checkpoint every", f"{use.every}{interval}; {count(use.written)} before the last step"
    if use.write_seconds is not None and use.seconds_between_failures is not None:
        known = f"{plural(use.failures or 0, 'failure')} in {plural(use.attempts or 0, 'attempt')} on record"
        cost = f"a write costs {use.write_seconds:.2f} s" if use.written else "a write was taken to cost 1 s"
        between = f"{use.seconds_between_failures / 3600:,.1f} h between failures"
        yield "why so often", f"{cost}, {between} ({known})"
    yield "training waited for checkpoints", f"{use.stalled_seconds:.2f} s, {share(use.stalled_share)} of it"


def _head(value: TrainOutcome) -> tuple[str, ...]:
    """Return how the classification head was solved, if it was."""
    head = value.head
    if head is None:
        return ()
    measured = ", ".join(f"{name} {number(each)}" for name, each in head.metrics.items())
    return (
        f"The classification head was solved on {plural(head.rows, 'training row')}, "
        f"{' and '.join(count(each) for each in head.class_rows)} of the classes, and names class 1 from a probability "
        f"of {number(head.threshold)} on. {_calibrated(head.calibration_rows)} {SEEN}: {measured}.",
    )


def _calibrated(rows: int) -> str:
    if not rows:
        return "No row was left to calibrate it on."
    return f"{plural(rows, 'row')} that no step was taken on calibrated it."


def _label_heads(value: TrainOutcome) -> Iterator[str]:
    """Yield how each head of labels was solved, if it was."""
    for name, head in value.label_heads.items():
        measured = ", ".join(f"{metric} {number(each)}" for metric, each in head.metrics.items())
        yield (
            f"The head {name} was solved on {plural(head.rows, 'training row')}. {_calibrated(head.calibration_rows)} "
            f"{SEEN}: {measured}."
        )


def _figures(value: TrainOutcome) -> Iterator[Figure]:
    """Yield figures of the losses, and of each kind of metric that was measured."""
    if value.losses:
        yield curves("Training loss", "as the optimiser saw it", [(p.step, p.metrics) for p in value.losses])
    for kind, names in ON_THE_HOLDOUT.items():
        kept = [(p.step, {name: each for name, each in p.metrics.items() if name in names}) for p in value.curve]
        if any(values for _, values in kept):
            yield curves(f"{kind} on the holdout", HOLDOUT, kept)


def _before_and_after(curve: Sequence[CurvePoint]) -> tuple[Table, ...]:
    if not curve:
        return ()
    first, last = curve[0], curve[-1]
    rows = [
        (name, number(first.metrics.get(name)), number(value), difference(value, first.metrics.get(name)))
        for name, value in last.metrics.items()
    ]
    columns = ("metric", f">step {first.step}", f">step {last.step}", ">difference")
    return (table("Holdout, before and after", columns, rows),)


def _device_use(nodes: Sequence[DeviceUse] | None) -> tuple[Table, ...]:
    if nodes is None:
        return ()
    columns = (">node", ">busy, median %", ">busy, peak %", ">memory, median GiB", ">memory, peak GiB")
    rows = [
        (
            str(use.node),
            *(f"{percent:.1f}" for percent in (use.utilization_median, use.utilization_peak)),
            *(f"{gib:.2f}" for gib in (use.memory_gib_median, use.memory_gib_peak)),
        )
        for use in nodes
    ]
    return (table("NeuronCores and device memory", columns, rows), *_network([(n.node, n.efa) for n in nodes if n.efa]))


def _network(nodes: Sequence[tuple[int, EfaUse]]) -> tuple[Table, ...]:
    if not nodes:
        return ()
    columns = (">node", ">interfaces", ">sent, GiB", ">received, GiB", "drops, repetitions, errors")
    rows = [
        (
            str(node),
            str(efa.interfaces),
            *(f"{gib:,.1f}" for gib in (efa.sent_gib, efa.received_gib)),
            ", ".join(f"{count(number)} {name}" for name, number in efa.faults.items()) or "none",
        )
        for node, efa in nodes
    ]
    return (table("Network (EFA) during training", columns, rows),)


def _points(what: str, points: Sequence[CurvePoint]) -> tuple[Table, ...]:
    if not points:
        return ()
    names = list(dict.fromkeys(name for point in points for name in point.metrics))
    rows = [(str(point.step), *(number(point.metrics.get(name)) for name in names)) for point in points]
    return (table(f"{what} by step", (">step", *(f">{name}" for name in names)), rows, folded=True),)
