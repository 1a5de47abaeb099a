"""The encoder's part of a training or an inference: its work in earlier runs, its speed, and its seconds elsewhere."""

import datetime as dt
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from configs.schema.config import Config
from tasks.contracts.outcomes import InferOutcome, Phases, StageResult, TrainOutcome
from tasks.contracts.stages import Stage, place_of
from tasks.laboratory.step_time import Point, Speed, efficiency
from tasks.monitoring import estimates
from tasks.monitoring.estimates import ATTEMPTS, Past, growth
from tasks.preflight.encoder_size import Work, arithmetic_of, encoder_operations, encoder_size, sequence_of
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

_ENCODES: dict[Stage, Work] = {Stage.train: "train", Stage.infer: "embed"}


class Encoded(NamedTuple):
    """The work of an attempt that trained or embedded."""

    amount: float  # train: tokens with padding; infer: texts
    seconds: float  # part of the attempt's productive seconds


class Encoding(NamedTuple):
    """The work of the encoder that a stage is expected to have, and the speed behind its seconds."""

    amount: float  # as in `Encoded`
    seconds: float
    speed: Speed


class Known(NamedTuple):
    """Earlier runs, and the encoder's work in their attempts."""

    past: Past
    work: Mapping[tuple[str, Stage, int], Encoded] = {}  # by run key, stage and number of the attempt

    def encoded(self, record: LedgerRecord) -> Encoded | None:
        return self.work.get((record.run_key, Stage(record.stage), record.attempt))


class Load(NamedTuple):
    """The amounts of a run; each None is taken from the earlier runs, by rows."""

    rows: Sequence[int] | None = None  # ingested rows of each span of the window
    tokens: float | None = None  # computed by train, with padding
    steps: int | None = None  # training steps
    items: int | None = None  # distinct items of the window, for a first run of infer
    text_tokens: float = 32.0  # tokens of an item's text
    earlier: int = 0  # rows of the spans that were trained on before


def with_work(snapshot: Snapshot, past: Past) -> Known:
    """Return earlier runs with the encoder's work in their attempts."""
    found = {}
    for key in past.runs:
        run = Run(snapshot, key)
        for stage in _ENCODES:
            result = run.stage(stage).result
            if result is not None and (each := _encoded(result)) is not None:
                found[key, stage, result.attempt] = each
    return Known(past, found)


def _encoded(result: StageResult) -> Encoded | None:
    match result.outcome:
        case TrainOutcome(tokens=tokens, checkpoints=use) if tokens is not None:
            seconds = use.training_seconds if use is not None else result.phases.productive
            return Encoded(tokens.computed, min(seconds, result.phases.productive))
        case InferOutcome(vectors=vectors, vectors_reused=reused, texts_per_second=speed) if vectors > reused and speed:
            seconds = (vectors - reused) / speed
            return Encoded(vectors - reused, min(seconds, result.phases.productive))
        case _:
            return None


def speeds(known: Known, load: Load) -> list[Point]:
    """Return the speeds at which earlier attempts trained and embedded, each reduced to one machine alone."""
    found = []
    for record in known.past.records:
        facts, encoded = known.past.runs.get(record.run_key), known.encoded(record)
        if facts is None or encoded is None or not encoded.seconds:
            continue
        stage, config, size = Stage(record.stage), facts.config, encoder_size(facts.config)
        place, work = place_of(config, stage), _ENCODES[stage]
        if size is None or place.instance is None:
            continue
        if work == "train" and config.train.sides == "queries":  # its items have no backward pass
            continue
        done = encoder_operations(config, stage, size, encoded.amount, load.text_tokens)
        alone = done / encoded.seconds / place.machines / efficiency(place.machines, batch_grows=True)
        found.append(
            Point(
                work, place.instance, arithmetic_of(config, work, place), sequence_of(config, stage),
                size.hidden, size.layers, alone, dt.datetime.fromisoformat(record.started_at), record.run_key, own=True,
            )
        )  # fmt: skip
    return found


def amount_of(known: Known, config: Config, stage: Stage, load: Load) -> float | None:
    """Return the tokens that train computes, or the texts that infer embeds; None if not known.

    Tokens are taken from earlier runs and scaled by rows, else from `load`, which has an estimate by the texts' bytes.
    A catalogue is expected to grow as it grew last. A run that trains queries alone embeds the new items: as many as
    the last one of its kind, and the first none.
    """
    done = sorted(known.past.records, key=lambda record: record.started_at)
    before = [
        (record, each)
        for record in done
        if record.stage is stage
        and (each := known.encoded(record)) is not None
        and (stage is Stage.train or known.past.did_so(record, config))
    ]
    if stage is Stage.infer:
        texts = [each.amount for _, each in before]
        if config.train.sides == "queries":
            return texts[-1] if texts else 0.0
        return texts[-1] + max(0.0, texts[-1] - texts[-2]) if len(texts) > 1 else texts[-1] if texts else load.items
    by_rows = [each.amount * growth(known.past, record, config, stage, load.rows) for record, each in before]
    return statistics.median(by_rows[-ATTEMPTS:]) if by_rows else load.tokens


def scaled(
    known: Known, record: LedgerRecord, config: Config, stage: Stage, load: Load, encoding: Encoding | None
) -> Phases:
    """Return the phases of an attempt with another load, as `estimates.scaled` does.

    Args:
        encoding: the encoder's work now, in place of that attempt's; None: it grows with the rows.
    """
    phases, encoded = estimates.scaled(known.past, record, config, stage, load.rows), known.encoded(record)
    if encoded is None or encoding is None:
        return phases
    rest = max(0.0, record.seconds.productive - encoded.seconds)
    ratio = growth(known.past, record, config, stage, load.rows)
    return phases.model_copy(update={"productive": rest * ratio + encoding.seconds})
