"""The numbers that a gate is judged by: value, baseline, threshold, and the confidence interval of the difference."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from configs.schema.gates import METRICS, NEWEST, Family, GateConfig, least_competitors
from tasks.contracts.evaluation import Role
from tasks.foundation.nouns import plural
from tasks.quality.common_items import CommonItems
from tasks.quality.intervals import Error, Term, error_of, within_shares
from tasks.quality.row_results import RowResults
from tasks.quality.selection import Answers, Part, answers_of, measure, parts_of


class Measured(NamedTuple):
    """The measurements of the models: metrics over all rows, and the results of each row if they were kept."""

    metrics: Mapping[Role, Mapping[str, float]]
    rows: RowResults | None = None
    corpus: str = ""  # items that were ranked, for people: `among 2,000 items`
    whole: str = ""  # the same for the whole catalogue, if `corpus` is a part of it; empty: not ranked
    shared: Mapping[Role, CommonItems] = MappingProxyType({})  # common ones of a baseline and the challenger
    min_shared: float = 0.0  # least share of the catalogue that these must be
    many: int | None = None  # number of measured rows
    sampled_from: int | None = None  # number of rows that they are a sample of; None: no sample
    called: str = "holdout rows"
    newest: str = ""  # the newest span
    seen_by: frozenset[Role] = frozenset()  # released models that were trained on the newest span or a later one
    min_slice_rows: int = 1
    unseen_alone: bool = False  # the holdout has unseen queries alone, by its rule
    grouped: str = "query"  # the rows that hang together apart from those about one item: of one query, or of one user
    suffix: str = ""  # suffix of the metrics' names


class Interval(NamedTuple):
    """Bounds of the value or the difference, each at the gate's confidence; corrected for multiple comparisons."""

    low: float
    high: float
    error: Error


class Comparison(NamedTuple):
    """One gate on one part of the rows."""

    gate: GateConfig
    where: str
    value: float  # NaN: not measured, or measured so
    baseline: float | None  # None: the gate has no baseline, or the baseline does not exist
    rows: int | None = None
    groups: int | None = None
    commonest_group: float | None = None  # share of the rows
    commonest_item: float | None = None
    interval: Interval | None = None
    absent: str = ""  # reason why the gate does not apply
    unknown: str = ""  # reason why its rows can't decide
    among: str = ""  # items that were ranked, for people; empty: not known, or the gate needs no rows
    shared: float | None = None  # share of the catalogue that `among` is; None: it is no set of common items
    refuses: bool = False  # a critical gate refuses if `unknown`, whatever its setting
    grouped: str = "query"  # as in `Measured`
    unmeasured: bool = False  # the evaluation has no such metric

    @property
    def judged(self) -> float:
        """The value, or its difference to the baseline, to compare with the threshold."""
        return self.value - (self.baseline or 0.0)

    @property
    def threshold(self) -> float:
        """The limit of `judged`; a relative threshold is multiplied by the baseline."""
        return self.gate.threshold * (abs(self.baseline or 0.0) if self.gate.relative else 1.0)


def compare(measured: Measured, gate: GateConfig) -> list[Comparison]:
    """Return the numbers of a gate, one entry for each slice or span that it judges; at least one.

    Raises:
        ConfigError: the gate names a column that the rows do not have.
    """
    role = None if gate.baseline == "none" else Role(gate.baseline)
    # Without answers to single rows, a gate on each kind of queries judges the number over all of them.
    of_queries = "" if gate.queries == "each" else gate.of_queries
    of_part = gate.rows != "holdout" or any((gate.slice, gate.span, gate.width, of_queries))
    rows = measured.rows
    if absent := _absent(measured, gate, role) or _not_as_narrow(rows, gate, role):
        where = ", ".join(filter(None, (gate.narrowed, gate.of_queries)))
        return [Comparison(gate, where, _whole(measured, Role(gate.of), gate), None, absent=absent)]
    among, shared = _among(measured, gate, role), None
    if role is not None and (common := _common(measured, gate, role)) is not None:
        few = common.too_few(measured.min_shared, _called(role))
        if few and role is Role.champion:
            return [Comparison(gate, "", math.nan, None, shared=common.share, unknown=few, refuses=True)]
        if few and rows is not None:  # its release has the items of its time; the corpus has today's
            rows, among = rows.without_shared(role), measured.corpus
        else:
            shared = common.share
    if not gate.of_rows or rows is None or not _answered(measured, gate.metric, Role(gate.of)):
        if of_part:
            kept = "the evaluation kept no answers to single rows; evaluate again to judge a part of them"
            absent = kept if rows is None else f"the model gives no {gate.metric}"
        value = _whole(measured, Role(gate.of), gate)
        baseline = None if role is None else _whole(measured, role, gate)
        many = measured.many if gate.of_rows else None
        missing = gate.metric not in measured.metrics[Role(gate.of)]
        found = Comparison(gate, "", value, baseline, rows=many, absent=absent, unknown=_too_few(gate, many))
        found = found._replace(among=among if gate.of_rows else "", shared=shared, unmeasured=missing)
        if _beyond_corpus(gate) and (missing or (role is not None and gate.metric not in measured.metrics[role])):
            found = found._replace(unknown=_uncontested(gate, ""), refuses=True)
        return [found]
    parts = parts_of(rows, gate, measured.newest, measured.min_slice_rows, measured.unseen_alone)
    if not parts:
        few = f"no {gate.slice_column or 'span'} has {measured.min_slice_rows} rows (evaluate.min_slice_rows)"
        return [Comparison(gate, "", math.nan, None, absent=few)]
    compared = [_of_part(rows, gate, role, part) for part in parts]
    found = _with_intervals(gate, compared)
    return [each._replace(among=among, shared=shared, grouped=measured.grouped) for each in found]


def _among(measured: Measured, gate: GateConfig, role: Role | None) -> str:
    """Return the items that `RowResults.ranks_against` ranks, for people."""
    if not _beyond_corpus(gate):
        return measured.corpus
    if role is None:
        return measured.whole or measured.corpus
    common = _common(measured, gate, role)
    return measured.corpus if common is None else common.words


def _common(measured: Measured, gate: GateConfig, role: Role) -> CommonItems | None:
    """Return the items that both models of a gate hold; None if they are compared among the corpus."""
    return measured.shared.get(role) if _beyond_corpus(gate) else None


def _beyond_corpus(gate: GateConfig) -> bool:
    """Return True if a gate is judged among more items than the corpus, if these were ranked.

    There the champion was compared with the challenger alone, and losses and narrower vectors were not measured.
    """
    return gate.of == "challenger" and METRICS[gate.metric].family is Family.ranking and gate.width is None


def _answered(measured: Measured, metric: str, role: Role) -> bool:
    """Return True if a model's answers to single rows give the metric, be it of no row with enough competitors."""
    family, rows = METRICS[metric].family, measured.rows
    if family is Family.ranking:
        return role in (measured.metrics if rows is None else rows.ranks)
    if family is Family.likelihood and rows is not None:
        return role in rows.losses
    return metric in measured.metrics.get(role, {})


def _absent(measured: Measured, gate: GateConfig, role: Role | None) -> str:
    """Return the reason why a gate does not apply; empty if it does."""
    if gate.of == "champion":
        if Role.champion not in measured.metrics:
            return "no champion yet to judge"
        seen = [_called(each) for each in (Role.champion, role) if each is not None and each in measured.seen_by]
        if seen and gate.span == NEWEST:
            return f"the {seen[0]} has seen span {measured.newest} already"
    if role is None:
        compatible = METRICS[gate.metric].family is Family.compatibility
        return "no champion yet to compare with" if compatible and Role.champion not in measured.metrics else ""
    if role in measured.metrics:
        if _answered(measured, gate.metric, role):
            return ""
        return f"the {_called(role)} gives no {gate.metric} to compare with"
    if role is Role.champion or (role is not Role.untrained and Role.champion not in measured.metrics):
        return f"no {'champion' if role is Role.champion else 'release'} yet to compare with"
    if role is Role.previous:
        return "no release of another model before the champion that can be measured"
    return f"the {_called(role)} was not measured; evaluate again to compare with it"


def _not_as_narrow(rows: RowResults | None, gate: GateConfig, role: Role | None) -> str:
    """Return the reason why the gate's vector width can't be judged; empty if all models were measured with it."""
    if gate.width is None or rows is None:
        return ""
    known = rows.narrow_ranks.get(gate.width, {})
    if Role(gate.of) not in known:
        return "the evaluation did not measure them; evaluate again to judge by them"
    if role is not None and role not in known:
        return f"the {_called(role)} was not measured by {gate.narrowed}; its vectors may have no more"
    return ""


def _called(role: Role) -> str:
    called = {
        Role.previous: "previous release",
        Role.untrained: "untrained model",
        Role.first: "first release",
        Role.best: "best release",
    }
    return called.get(role, role)


def _whole(measured: Measured, role: Role, gate: GateConfig) -> float:
    return math.nan if gate.width is not None else measured.metrics.get(role, {}).get(gate.metric, math.nan)


# Metrics that are undefined for any model on some rows, and a name of these rows.
_OF_DIFFERENT_LABELS = {"auc": "one class", "pearson": "one label"}


def _of_part(rows: RowResults, gate: GateConfig, role: Role | None, part: Part) -> tuple[Comparison, Answers]:
    roles = (Role(gate.of), *((role,) if role else ()))
    met = role if gate.of == "challenger" else None
    answers = answers_of(rows, gate.metric, part.rows, roles, met, gate.width)
    value, *others = measure(answers)
    many, truth, unknown, refuses = len(answers.truth), answers.truth, "", False
    if not many and part.alone:
        unknown, refuses = _uncontested(gate, part.where), True
    elif part.where and not many:
        unknown = f"no row of {part.where} to judge"
    elif part.where and gate.metric in _OF_DIFFERENT_LABELS and len(np.unique(truth)) < 2:
        unknown = f"{part.where} has rows of {_OF_DIFFERENT_LABELS[gate.metric]} only"
    else:
        unknown = _too_few(gate, many)
    of_group, of_item = (np.unique(each, return_counts=True)[1] for each in (answers.groups, answers.items))
    largest = [float(counts.max()) / many if many else None for counts in (of_group, of_item)]
    found = Comparison(
        gate,
        ", ".join(filter(None, (gate.narrowed, part.where))),
        value,
        baseline=others[0] if others else None,
        rows=many,
        groups=len(of_group),
        commonest_group=largest[0],
        commonest_item=largest[1],
        unknown=unknown,
        refuses=refuses,
    )
    return found, answers


def _uncontested(gate: GateConfig, where: str) -> str:
    """Return the reason why rows without enough competitors can't decide, with the way out."""
    least = least_competitors(gate.metric)
    items = "another item that competes" if least == 1 else f"{least} other items that compete"
    return (
        f"no row{f' of {where}' if where else ''} has {items} with its own, so that any model would be perfect; items "
        "that are as right for the query don't compete. Judge a smaller k, as in recall@1, or ingest more items"
    )


def _too_few(gate: GateConfig, many: int | None) -> str:
    if many is None or many >= gate.min_rows:
        return ""
    return f"{plural(many, 'row is', 'rows are')} fewer than the {gate.min_rows:,} that the gate wants"


def _with_intervals(gate: GateConfig, found: Sequence[tuple[Comparison, Answers]]) -> list[Comparison]:
    """Add the intervals of a gate with a confidence level.

    With several comparisons, Holm's method corrects the bound that lets the gate fail: the probability that any part of
    an equal model fails stays the same as for one part. The bound that lets it pass needs no correction, since a model
    passes only if it passes everywhere.
    """
    result = [comparison for comparison, _ in found]
    if gate.confidence is None:
        return result
    errors = {
        at: _error(comparison, answers)
        for at, (comparison, answers) in enumerate(found)
        if not comparison.unknown and math.isfinite(comparison.judged)
    }
    doubt, left = 1 - gate.confidence, set(errors)
    while left:
        intervals = {at: _interval(result[at], errors[at], doubt / len(left)) for at in left}
        failed = {at for at, interval in intervals.items() if _fails(result[at], interval)}
        for at in failed or left:
            result[at] = result[at]._replace(interval=intervals[at])
        left = left - failed if failed else set()
    return result


def _error(comparison: Comparison, answers: Answers) -> Error:
    """Return the error of the number above its threshold; a relative threshold errs with the baseline."""
    if comparison.baseline is None:
        return error_of(Term(answers, (1.0,)))
    share = comparison.gate.threshold * math.copysign(1.0, comparison.baseline) if comparison.gate.relative else 0.0
    return error_of(Term(answers, (1.0, -1.0 - share)))


def _interval(comparison: Comparison, error: Error, doubt: float) -> Interval:
    """Return the interval with a doubt of its own at the end that lets the gate fail."""
    surely = error.bounds(comparison.judged, comparison.gate.confidence or 0.0)
    perhaps = error.bounds(comparison.judged, 1 - doubt)
    ends = (surely[0], perhaps[1]) if comparison.gate.direction == "higher" else (perhaps[0], surely[1])
    return Interval(*(within_shares(comparison.gate.metric, ends) if comparison.baseline is None else ends), error)


def _fails(comparison: Comparison, interval: Interval) -> bool:
    higher = comparison.gate.direction == "higher"
    return interval.high < comparison.threshold if higher else interval.low > comparison.threshold
