"""Settings that fit a first log and feed, by the facts of `millrace look`; each with its reason.

Only keys that differ from base.yaml are chosen. Numbers of rows are counted, all else is of a sample.
"""

import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from configs.schema.config import Config
from tasks.contracts.spans import SpanKind, first_day, span_of
from tasks.data.files.facts import ColumnFacts, Shape, SourceFacts
from tasks.first_hour.labels import Labels
from tasks.quality.sight import of_parts, sight

_CRONS = {
    SpanKind.day: "0 6 * * *",
    SpanKind.week: "0 6 * * 1",
    SpanKind.month: "0 6 1 * *",
    SpanKind.quarter: "0 6 1 1,4,7,10 *",
    SpanKind.year: "0 6 1 1 *",
}
_DAYS = {SpanKind.day: 1, SpanKind.week: 7, SpanKind.month: 31, SpanKind.quarter: 92, SpanKind.year: 366}
_TOKENS = (24, 32, 48, 64, 96, 128, 192, 256)
_CHARS_PER_TOKEN = 2.5  # in a small vocabulary; languages without spaces have one sign in a token
_WITHOUT_SPACES = {"ja", "zh", "th", "ko"}
_LONGEST_SCRATCH, _LONGEST_PRETRAINED = 128, 256  # tokens; longer texts are cut
_WANTED_STEPS = 150  # in a first training from random weights, so that a small log is learnt too
_WANTED_PAIRS = 500  # held out
_SMALL_SPAN = 200  # rows; with fewer a quiet span may have too few
_ID = re.compile(r"(^|[^a-z])(id|nr|no|number|ean|gtin|code|zip|plz)$")  # numbers that name something
_CATEGORIES, _SLICES = 50, 12  # most distinct values of a categorical feature, and of a column that is a slice
_NAME_CHARS = 40  # in the middle of a column of names


class ProposedSetting(NamedTuple):
    """A setting, and its reason."""

    key: str  # with dots
    value: Any
    reason: str


class FirstData(NamedTuple):
    """The sources of a new pipeline, and the wishes of its owner."""

    log: SourceFacts
    feed: SourceFacts | None
    labels: Labels
    span: SpanKind
    timezone: str
    pretrained: str | None  # None: a small new encoder
    longest_tokens: int | None = None  # limit of the pretrained folder; None: not limited

    @property
    def spans(self) -> int:
        """The number of spans that the log covers, at least one."""
        if self.log.first is None or self.log.last is None:
            return 1
        covered = dt.datetime.fromisoformat(self.log.last) - dt.datetime.fromisoformat(self.log.first)
        return max(1, math.ceil(covered.total_seconds() / 86400 / _DAYS[self.span]))

    @property
    def pairs(self) -> int:
        """The expected number of positive pairs of the log."""
        return round(self.log.rows * self.labels.positive)

    def column(self, role: str) -> ColumnFacts | None:
        """Return the column of a role: of the log, and of the feed for the item's text of a log of ids."""
        source, name = self.log, self.log.mapping.get(role)
        if role == "item" and name is None and self.feed is not None:
            source, name = self.feed, self.feed.mapping.get("text")
        return next((each for each in source.columns if each.name == name), None)


def first_settings(data: FirstData) -> list[ProposedSetting]:
    """Return the settings in the order of the schema."""
    query, item = (_tokens(data, data.column(role)) for role in ("query", "item"))
    return [
        *_features(data),
        *_validate(data),
        *_model(data, max(query, item)),
        *_heads(data),
        *_train(data, query, item),
        *_evaluate(data),
        ProposedSetting("infer.max_tokens", max(query, item), "as in training"),
        ProposedSetting(
            "infer.sequence_tokens", max(64, query, item), "texts are packed into sequences of this length"
        ),
        *_operation(data),
    ]


def to_yaml(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    text = text.removesuffix("...\n").strip()
    return json.dumps(value, ensure_ascii=False) if "\n" in text else text  # JSON is YAML, without line breaks


def gates_in_words(data: FirstData, config: Config) -> list[str]:
    """Return a sentence about the sight of each critical gate, once all spans of the log are trained."""
    query = data.column("query")
    repeats = query.distinct / max(data.log.sampled - query.nulls, 1) if query else 1.0
    queries = round(data.pairs * config.evaluate.holdout_share * min(1.0, repeats))
    gates = (part for each in config.evaluate.gates if each.severity == "critical" for part in of_parts(each))
    return [sight(gate, queries if gate.queries == "all" else queries // 2).sentence for gate in gates]


def _tokens(data: FirstData, column: ColumnFacts | None) -> int:
    """Return the number of tokens that nearly all texts of a column fit into."""
    most = _LONGEST_PRETRAINED if data.pretrained else _LONGEST_SCRATCH
    most = min(most, data.longest_tokens or most)
    if column is None or column.lengths is None:
        return most
    _, median, longest = column.lengths
    dense = any(each.value in _WITHOUT_SPACES for each in column.languages)
    tokens = min(longest, 4 * median) / (1.0 if dense else _CHARS_PER_TOKEN) + 2  # with the two special ones
    return min(next((each for each in _TOKENS if each >= tokens), most), most)


def _features(data: FirstData) -> Iterator[ProposedSetting]:
    if data.feed is None or data.pretrained is not None:
        return
    for kind, what, fits in (("numeric", "numbers", _is_number), ("categorical", "names", _is_category)):
        found = [each.name for each in _free(data.feed) if fits(data.feed, each)]
        if _rows_have_texts(data):
            found = [each.name for each in _free(data.log) if fits(data.log, each) and each.name in found]
        if found:
            yield ProposedSetting(f"features.{kind}", found, f"{what} of the feed, read with an item's text")


def _validate(data: FirstData) -> Iterator[ProposedSetting]:
    if data.log.rows / data.spans < _SMALL_SPAN:
        yield ProposedSetting(
            "validate.small_spans", "merge", f"a quiet {data.span} is trained together with the next one"
        )
    yield from (ProposedSetting(f"validate.{key}", value, reason) for key, value, reason in data.labels.validate)


def _model(data: FirstData, longest: int) -> Iterator[ProposedSetting]:
    if data.pretrained is not None:
        yield ProposedSetting("model.pretrained", data.pretrained, "the encoder that the first training begins with")
        return
    size = {"vocab_size": 4000, "hidden_size": 96, "layers": 2, "attention_heads": 4, "intermediate_size": 384}
    reason = "a small new encoder: enough for short texts, minutes on two cores; or pretrained: FOLDER"
    yield ProposedSetting("model.scratch", size | {"max_tokens": longest}, reason)
    yield ProposedSetting("model.embedding_width", 64, "numbers in a vector")
    if any(True for _ in _features(data)):
        kind = {"kind": "both", "deep_widths": [96]}
        yield ProposedSetting("model.interaction", kind, "reads the features; kind: none reads texts alone")


def _heads(data: FirstData) -> Iterator[ProposedSetting]:
    if data.pretrained is None:
        yield ProposedSetting("heads.contrastive.scale", 10.0, "a new encoder learns more than at 20")
    if data.labels.positives_only:
        yield ProposedSetting(
            "heads.contrastive.positives_only", True, "rows that the labels call bad, or do not call good, are no hits"
        )
    if data.labels.classification:
        reason = "the labels of both classes: learnt with a little weight, and read by positives_only"
        yield ProposedSetting("heads.classification", data.labels.classification, reason)


def _train(data: FirstData, query: int, item: int) -> Iterator[ProposedSetting]:
    each = data.pairs / data.spans
    batch = 128 if each >= 500 else 64 if each >= 200 else 32
    scratch = data.pretrained is None
    if data.labels.weighted:
        yield ProposedSetting("train.row_weight", "event_weight", "the weights of validate.events")
    if scratch or batch != 64:
        reason = f"about {each:,.0f} pairs a {data.span}: enough of them in a step, and several steps"
        yield ProposedSetting("train.batch_rows", batch, reason)
    yield ProposedSetting(
        "train.max_tokens", {"query": query, "item": item}, "by the lengths of the texts; longer ones are cut"
    )
    yield ProposedSetting("train.sequence_tokens", max(64, query, item), "several short texts share a sequence")
    if not scratch:
        yield ProposedSetting("train.epochs", 2, "passes over a run's rows")
        return
    epochs = math.ceil(_WANTED_STEPS * batch / max(data.pairs, 1))
    epochs = 1 if data.pairs > 500_000 else 2 if data.pairs > 100_000 else min(max(epochs, 4), 12)
    yield ProposedSetting(
        "train.epochs", epochs, f"about {math.ceil(data.pairs / batch) * epochs:,} steps over the whole log"
    )
    yield ProposedSetting("train.learning_rate", 2e-3, "new weights; pretrained ones learn at 5e-5")
    yield ProposedSetting("train.warmup_steps", 20, "steps until the rate is reached")
    yield ProposedSetting(
        "train.replay", 0.2, f"a fifth of the pairs are from earlier spans: a {data.span} alone is little"
    )
    yield ProposedSetting("train.averaging", {"ema_half_life_steps": 20}, "weights averaged over steps vary less")


def _evaluate(data: FirstData) -> Iterator[ProposedSetting]:
    share = next((each for each in (0.1, 0.15) if each * data.pairs >= _WANTED_PAIRS), 0.2)
    if share != 0.1:
        reason = f"about {share * data.pairs:,.0f} of {data.pairs:,} pairs judge each model, and are never trained on"
        yield ProposedSetting("evaluate.holdout_share", share, reason)
    sources = [data.log, *([data.feed] if data.feed and not _rows_have_texts(data) else [])]
    found = [each.name for source in sources for each in _free(source) if _is_category(source, each, _SLICES)]
    slices = [name for name in dict.fromkeys(found) if name not in data.labels.columns]
    if slices:
        yield ProposedSetting("evaluate.slices", slices, "metrics of each value are shown as well")


def _operation(data: FirstData) -> Iterator[ProposedSetting]:
    if _CRONS[data.span] != _CRONS[SpanKind.week]:
        yield ProposedSetting(
            "schedule.cron", _CRONS[data.span], f"after the end of each {data.span}, for millrace deploy"
        )
    if data.timezone != "UTC":
        yield ProposedSetting("schedule.timezone", data.timezone, "of the schedule")
    if data.span is not SpanKind.week:
        hours = 48.0 if data.span is SpanKind.day else 24.0 * (_DAYS[data.span] + 14)
        reason = f"age of the released data: a {data.span}, and {'a day' if hours == 48 else 'two weeks'} for its run"
        yield ProposedSetting("freshness.target_hours", hours, reason)


def _rows_have_texts(data: FirstData) -> bool:
    """Return whether rows come with their items' texts: such rows take no column of the feed."""
    return "item" in data.log.mapping


def _free(source: SourceFacts) -> list[ColumnFacts]:
    """Return the columns without a role."""
    return [each for each in source.columns if each.role is None and each.nulls < source.rows / 2]


def _is_number(_: SourceFacts, column: ColumnFacts) -> bool:
    number = column.type == "number" or column.suggests is Shape.decimal_comma
    return number and column.distinct > 2 and not _ID.search(column.name.casefold())


def _is_category(source: SourceFacts, column: ColumnFacts, most: int = _CATEGORIES) -> bool:
    """Return whether a column has few short names, each in two rows or more on average: no text, no link."""
    plain = column.type == "text" and column.suggests is None and not column.ids
    short = column.lengths is not None and column.lengths[1] <= _NAME_CHARS
    shared = column.distinct <= (source.sampled - column.nulls) / 2
    return plain and short and shared and 2 <= column.distinct <= most


def first_span(data: FirstData, over: str) -> str | None:
    """Return the newest span of the log that has ended, its newest if none has; None without times.

    Args:
        over: the newest span of the calendar that has ended.
    """
    if data.log.first is None or data.log.last is None:
        return None
    first, last = (span_of(_utc(each), data.span) for each in (data.log.first, data.log.last))
    return over if first_day(first) <= first_day(over) < first_day(last) else last


def _utc(text: str) -> dt.datetime:
    at = dt.datetime.fromisoformat(text)
    return at.astimezone(dt.UTC) if at.tzinfo else at
