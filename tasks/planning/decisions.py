"""Decisions about spans before they are trained, and spans that a person excluded; each with its record.

The rule is in tasks/laboratory/weekly.py; a person's word goes over it. A span that waits is not lost: it is trained in
one window with the next span. A skip has its reason; a later version of the span is not skipped.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Conflict, Store
from infra.store.records import find_record, read_record, update_record
from tasks.contracts.references import SpanRef
from tasks.contracts.workspace import DECISION, SKIP
from tasks.data import span_versions
from tasks.foundation.clock import Moment, now
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.planning.start import consumed, find_start, on_active
from tasks.runs import branches
from tasks.runs.holds import me

_WAY_OUT = "delete it: the span is then decided again"

LONGER = 2  # times the epochs of a longer training
SURE = 0.95  # probability of each bound of a gain


class Action(StrEnum):
    """The four answers, from the most work to none."""

    longer = "train longer"
    train = "train"
    refresh = "refresh"
    skip = "skip"

    @property
    def waits(self) -> bool:
        """True if the span is not trained now, and waits for the next one."""
        return self in (Action.refresh, Action.skip)


class Worth(Record):
    """The worth of one earlier training, by its forward score."""

    release: int = Field(description="number of the release that the training made")
    span: str = Field(description="span after it, on which it and the release before it were measured")
    spans: int = Field(ge=1, description="spans that it was trained on and the release before it was not")
    rows: int = Field(ge=1, description="holdout rows that it was measured on")
    points: float = Field(description="gain over the release before it, in points; one is 0.01 of recall@10")
    low: float = Field(description="lower bound of the gain")
    high: float = Field(description="upper bound of the gain; both together with 95 % confidence")


class Finding(StrEnum):
    """The answer to the question: is the next training worth it?"""

    worth = "worth it"
    waits = "not worth it"
    unknown = "can't know yet"


class Gain(Record):
    """The gain expected of the next training, in points, with its doubt."""

    points: float = Field(description="mean, over all spans of the window")
    low: float = Field(description="the gain is at least this, with a probability of 0.95")
    high: float = Field(description="the gain is at most this, with a probability of 0.95")
    needed: float = Field(description="least points for which the span is trained, by decide.least_points and the cost")
    probability: float = Field(description="probability that the gain is at least `needed`")
    points_per_span: float = Field(description="mean gain of a span whose training is released")
    released: int = Field(description="trainings that were released while the scores were measured, or since")
    refused: int = Field(description="trainings that the gates refused meanwhile; they count as no gain")

    @property
    def finding(self) -> Finding:
        """Worth it if the lower bound is enough, not worth it if the upper bound is not; else nobody can know yet."""
        if self.low >= self.needed:
            return Finding.worth
        return Finding.waits if self.high < self.needed else Finding.unknown


class Option(Record):
    """One of the answers, with the points and the cost expected of it."""

    action: Action
    points: float | None = Field(description="expected points, compared with no training; null: not known")
    seconds: float | None = Field(description="expected wall time; null: one of its stages was never done")
    dollars: float | None = Field(description="expected cost; null: the price, or the time, is not known")


class Overruling(Record):
    """A person's word over a decision."""

    action: Action
    reason: str
    by: str = Field(description="user and machine")
    at: Moment


class Decision(Record):
    """`lineages/<lineage>/decisions/<span>-v<version>.json`: the decision about one version of a span."""

    version: Literal[1] = 1
    lineage: str
    span: SpanRef
    arrived: bool = Field(description="false: a forecast, with the rows of the span before it")
    window: tuple[str, ...] = Field(description="spans that would be trained together, oldest first")
    at: Moment
    action: Action = Field(description="answer of the rule")
    reason: str = Field(description="arithmetic of the answer, in sentences")
    evidence: tuple[Worth, ...] = Field(description="worth of the newest trainings, oldest first")
    gain: Gain = Field(description="gain expected of the training")
    finding: Finding = Field(description="answer to the question: is the training worth it?")
    options: tuple[Option, ...] = Field(
        description="options: skip, refresh, train and longer, each with its points and dollars"
    )
    overruled: Overruling | None = Field(default=None, description="null: the rule's answer holds")

    @property
    def taken(self) -> Action:
        """The answer that holds: a person's, else the rule's."""
        return self.overruled.action if self.overruled is not None else self.action

    @property
    def why(self) -> str:
        """The reason of the answer that holds."""
        if self.overruled is None:
            return self.reason
        day = self.overruled.at[:10]
        return f"{self.overruled.by} overruled {self.action} on {day}: {self.overruled.reason.rstrip('.')}."


def find(store: Store, lineage: str, span: SpanRef) -> Decision | None:
    """Return the decision on record about a version of a span; None if it was not decided.

    Args:
        lineage: a lineage, or a branch of it.

    Raises:
        StoreError: the record is not readable; names the file.
    """
    return find_record(store, _key(store, lineage, span), Decision, _WAY_OUT)


def keep(store: Store, decision: Decision) -> Decision:
    """Write a decision down, unless a person overruled it meanwhile; return the one on record.

    Raises:
        StoreError: as `find`.
    """

    def kept(there: Decision | None) -> Decision | None:
        if there is not None and (there.arrived or there.overruled != decision.overruled):
            return None
        return decision  # the first one, or a forecast becomes a decision

    return update_record(store, _key(store, decision.lineage, decision.span), Decision, kept, _WAY_OUT) or decision


def overrule(store: Store, decision: Decision, action: Action, reason: str) -> Decision:
    """Write down a person's word over a decision; return both.

    Raises:
        ConfigError: no reason is given.
    """
    if not reason.strip():
        raise ConfigError(f"say why {decision.span.name} gets another decision: --reason TEXT")
    word = Overruling(action=action, reason=reason.strip(), by=me(), at=now())
    made = decision.model_copy(update={"overruled": word})
    update_record(store, _key(store, decision.lineage, decision.span), Decision, lambda _: made, _WAY_OUT)
    return made


def waiting(store: Store, config: Config, spans: Iterable[SpanRef]) -> dict[SpanRef, Decision]:
    """Return the spans that wait, with their decisions; none unless `decide.scheduled`.

    Raises:
        StoreError: a decision is not readable; names the file.
    """
    if not config.decide.scheduled:
        return {}
    found = {span: find(store, config.lineage, span) for span in spans}
    return {span: one for span, one in found.items() if one is not None and one.taken.waits}


def as_decided(store: Store, config: Config, span: SpanRef) -> Config:
    """Return the settings by which a span is trained: with LONGER times the epochs if so decided.

    Raises:
        StoreError: the decision is not readable; names the file.
    """
    made = find(store, config.lineage, span) if config.decide.scheduled else None
    if made is None or made.taken is not Action.longer:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"epochs": LONGER * config.train.epochs})})


def _key(store: Store, lineage: str, span: SpanRef) -> str:
    return DECISION.key(lineage=branches.root(store, lineage), span=span.name, version=span.version)


class Skip(Record):
    """`lineages/<lineage>/skipped/<span>-v<version>.json`: no run of the lineage takes this version of the span."""

    version: Literal[1] = 1
    span: SpanRef
    reason: str
    at: str = Field(description="time of the skip, ISO 8601 in UTC")


def skip(store: Store, config: Config, name: str, reason: str) -> Skip:
    """Record that runs of `config.lineage` skip the newest version of a span. A second call changes nothing.

    Raises:
        ConfigError: the reason is empty, the span was not ingested, the lineage has trained it, or it is already
            skipped for another reason.
        StoreError: the lineage's head is not readable.
    """
    if not reason.strip():
        raise ConfigError(f"say why {name} is skipped: --reason TEXT")
    span = span_versions.find(span_versions.list_spans(store), name)
    if span in consumed(find_start(store, on_active(store, config)).parent):
        raise ConfigError(
            f"lineage {config.lineage} has trained {name} v{span.version}, and what is in the weights can't be left out"
        )
    made = Skip(span=span, reason=reason.strip(), at=now())
    key = _skip_key(branches.root(store, config.lineage), span)
    try:
        store.create(key, made.to_json())
    except Conflict:
        there = _read(store, key)
        if there.reason != made.reason:
            raise ConfigError(
                f"{name} v{span.version} is skipped already: {there.reason}. To change that, delete {store.uri}/{key}"
            ) from None
        return there
    return made


def skips(store: Store, lineage: str) -> dict[SpanRef, Skip]:
    """Return the skips of a lineage or branch, by span.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    found = [_read(store, key) for key in store.list(SKIP.within(lineage=branches.root(store, lineage)))]
    return {one.span: one for one in found}


def spans_to_train(store: Store, lineage: str, *named: str) -> list[SpanRef]:
    """Return the newest version of every span that the lineage does not skip, oldest first.

    Raises:
        ConfigError: one of the spans in `named` is skipped.
        StoreError: as `skips`.
    """
    left_out = skips(store, lineage)
    spans = span_versions.list_spans(store)
    for span in spans:
        if span.name in named and span in left_out:
            raise ConfigError(f"{span.name} v{span.version} is skipped: {left_out[span].reason}; name another span")
    return [span for span in spans if span not in left_out]


def _read(store: Store, key: str) -> Skip:
    return read_record(store, key, Skip, "restore it from a backup, or delete it: the span is then trained")


def _skip_key(lineage: str, span: SpanRef) -> str:
    return SKIP.key(lineage=lineage, span=span.name, version=span.version)
