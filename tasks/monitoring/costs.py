"""The dollars of runs: by stage, by purpose, and for a million vectors, a million pairs and a point of recall.

All are sums over ended attempts at the prices of their time. A sum with a machine without a price is not known.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence

from pydantic import Field

from configs.prices import cost_of, merged, repriced, sum_dollars
from configs.schema.prices import Charge, PriceList
from tasks.contracts.outcomes import InferOutcome, TrainOutcome
from tasks.contracts.results import Phases
from tasks.contracts.stages import Stage
from tasks.foundation.records import Record
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run

POINT_METRIC = "recall@10"
POINT = 0.01  # gain of recall@10 on the holdout, against the champion
MILLION = 1e6


class Costs(Record):
    """Dollars of the ended attempts of one run, or of several. Queued time is free.

    `failed` has all dollars of attempts that failed, and the other purposes divide the whole by phase. An attempt's
    dollars are divided as its seconds on machines are, and all machines of an attempt count alike. `idle` is paid
    time without booting, compiling, restoring or kept work: work that is done again, and any time that the phases do
    not cover, as of machines that waited for others.
    """

    cost: float | None = Field(description="cost in dollars; null: no attempt, or a machine has no price")
    charges: tuple[Charge, ...] = Field(description="machine-seconds by instance and price, which the cost adds up")
    by_stage: dict[str, float | None] = Field(description="dollars by stage")
    failed: float | None = Field(description="dollars of attempts that failed")
    booting: float | None = Field(description="dollars of starting and ending containers and processes")
    compiling: float | None = Field(description="dollars of making or reading compiled graphs")
    idle: float | None = Field(description="dollars of paid time without booting, compiling, restoring or kept work")
    per_million_vectors: float | None = Field(description="dollars of infer for a million vectors; null: none made")
    per_million_pairs: float | None = Field(description="dollars of train for a million pairs; null: none trained")
    per_point: float | None = Field(
        description="dollars of everything for a gain of 0.01 of recall@10 against the champion, on the holdout; null: "
        "nothing was gained"
    )
    per_release: float | None = Field(description="dollars of all runs for each release; null: none made")
    open_dollars: float | None = Field(
        description="most that attempts without an end have cost until now, queued time included; null: none, or no "
        "price"
    )
    repriced: float | None = Field(
        default=None, description="cost at the prices of --prices; null: not asked for, or a machine has no price there"
    )
    repriced_charges: tuple[Charge, ...] = Field(default=(), description="the charges at the prices of --prices")

    def at(self, lists: Sequence[PriceList]) -> "Costs":
        """Return the costs with a second sum, at the prices of other lists."""
        now = repriced(self.charges, lists)
        return self.model_copy(update={"repriced": cost_of(now) if now else None, "repriced_charges": now})


def costs_of(runs: Sequence[Run], now: dt.datetime | None = None) -> Costs:
    """Return the costs of runs; `now` is the time up to which attempts without an end are counted."""
    attempts = [one for run in runs for one in run.attempts]
    ended = [one for one in attempts if one.ended_at is not None]
    charges = merged(one.charge for one in ended)
    cost = cost_of(charges) if ended else None
    by_stage = {
        stage.value: sum_dollars(one.cost for one in ended if one.stage is stage)
        for stage in dict.fromkeys(one.stage for one in ended)
    }
    begun = [one for one in attempts if one.ended_at is None]
    return Costs(
        cost=cost,
        charges=charges,
        by_stage=by_stage,
        failed=_sum(ended, lambda one: one.failure is not None),
        booting=_sum(ended, lambda one: _share(one, one.seconds.booting)),
        compiling=_sum(ended, lambda one: _share(one, one.seconds.compiling)),
        idle=_sum(ended, lambda one: _rest(_share(one, _used(one.seconds))) if one.billable_seconds else 0.0),
        per_million_vectors=_per(by_stage.get(Stage.infer), _vectors(runs), MILLION),
        per_million_pairs=_per(by_stage.get(Stage.train), _pairs(runs), MILLION),
        per_point=_per(cost, points_gained(runs), 1.0),
        per_release=_per(cost, sum(run.release is not None for run in runs), 1.0),
        open_dollars=sum_dollars(_until(one, now) for one in begun) if begun and now is not None else None,
    )


def points_gained(runs: Iterable[Run]) -> float:
    """Return the points of recall@10 that models gained against their champions; refused models gained none."""
    gained = 0.0
    for run in runs:
        judged = run.judgement
        if judged is None or run.rejected or judged.outcome.champion is None:
            continue
        before, after = (each.get(POINT_METRIC) for each in (judged.outcome.champion, judged.outcome.challenger))
        if before is not None and after is not None:
            gained += max(0.0, after - before) / POINT
    return gained


def _sum(attempts: Iterable[LedgerRecord], part: Callable[[LedgerRecord], float]) -> float | None:
    """Return the dollars of a part of each attempt; None if one that has such a part has no price."""
    parts = [(one.cost, part(one)) for one in attempts]
    return sum_dollars(None if cost is None else cost * each for cost, each in parts if each) if parts else None


def _share(record: LedgerRecord, seconds: float) -> float:
    return min(1.0, seconds / record.seconds.paid) if record.seconds.paid else 0.0


def _rest(share: float) -> float:
    return round(1 - share, 9)  # a sum of phases is not the whole to the last digit


def _used(seconds: Phases) -> float:
    return seconds.booting + seconds.compiling + seconds.restoring + seconds.productive


def _per(dollars: float | None, amount: float, unit: float) -> float | None:
    return dollars / amount * unit if amount and dollars is not None else None


def _until(record: LedgerRecord, now: dt.datetime) -> float | None:
    seconds = max(0.0, (now - dt.datetime.fromisoformat(record.started_at)).total_seconds())
    return None if record.price is None else record.price.dollars(seconds * record.machines)


def _vectors(runs: Iterable[Run]) -> int:
    made = (run.outcome(Stage.infer) for run in runs)
    return sum(one.vectors_made for one in made if isinstance(one, InferOutcome))


def _pairs(runs: Iterable[Run]) -> int:
    trained = (run.outcome(Stage.train) for run in runs)
    return sum(one.rows_trained for one in trained if isinstance(one, TrainOutcome))
