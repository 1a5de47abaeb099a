"""Evaluate: the verdicts of the gates, the challenger compared with the champion, and the model's weakest slices.

All models that it measured are next to each other: over all rows, their vectors, and span by span.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from types import MappingProxyType

from configs.schema.gates import METRICS, Family, names_of
from flows.presentation import queries
from flows.presentation.model import Cell, Section, Table, table
from flows.presentation.queries import forward_sentence
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import NONE, count, difference, gate_name, moment, number
from tasks.contracts.evaluation import (
    MAIN,
    Override,
    Role,
    SliceMetrics,
    SpanMetrics,
    Verdict,
    main_metric,
    refusals,
    undecided,
)
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.workspace import VERDICTS
from tasks.foundation.nouns import plural
from tasks.quality.label_metrics import SKILLS
from tasks.runs.results import Judgement


def tables(value: EvaluateOutcome) -> Iterator[Table]:
    """Yield a table of the models' metrics, one of their vectors, and one by span, where these were measured."""
    if not value.measured:
        return
    rows, items = plural(value.holdout_rows, "holdout row"), plural(value.corpus_items, "item")
    over = [each.metrics for each in value.measured]
    yield _by_model(value, over, f"Every model on the same {rows}, among the same {items}")
    if value.golden:
        golden = [value.golden.get(each.role, {}) for each in value.measured]
        yield _by_model(value, golden, f"Every model on the {plural(value.golden_rows, 'row')} of the golden set")
    yield _by_model(value, [each.vectors for each in value.measured], f"Vectors of the {items} by each model")
    by_width = [{f"first {width}": recall for width, recall in each.recall_by_width.items()} for each in value.measured]
    if any(by_width):
        whole = [{"whole": each.metrics[MAIN]} | of for each, of in zip(value.measured, by_width, strict=True)]
        yield _by_model(value, whole, f"{MAIN} by the first numbers of the vectors alone, normalised again")
    if len(value.spans) > 1:
        yield _by_span(value.spans, _shown(value))


def newest_span(value: EvaluateOutcome) -> tuple[str, ...]:
    """Return a sentence that compares champion and challenger on the newest span; empty if not measured there."""
    if not value.spans:
        return ()
    newest, metric = value.spans[-1], _shown(value)
    challenger, champion = (newest.metrics.get(role, {}).get(metric) for role in (Role.challenger, Role.champion))
    if challenger is None or champion is None:
        return ()
    return (
        f"On the {count(newest.rows)} holdout rows of span {newest.span} alone, {metric} is {number(champion)} by the "
        f"champion and {number(challenger)} by the challenger: {difference(challenger, champion)}.",
    )


def _by_model(value: EvaluateOutcome, numbers: list[dict[str, float]], caption: str) -> Table:
    names = list(dict.fromkeys(name for each in numbers for name in each))
    rows = [
        (
            measured.role.value,
            f"{measured.version}, release {measured.release}" if measured.release else measured.version,
            *(number(each.get(name)) for name in names),
        )
        for measured, each in zip(value.measured, numbers, strict=True)
    ]
    return table(caption, ("role", "model", *(f">{name}" for name in names)), rows)


def _by_span(spans: tuple[SpanMetrics, ...], metric: str) -> Table:
    rows = []
    for span in reversed(spans):
        values = {role: metrics.get(metric) for role, metrics in span.metrics.items()}
        challenger, champion = values.get(Role.challenger), values.get(Role.champion)
        rows.append(
            (
                span.span,
                count(span.rows),
                number(challenger),
                number(champion),
                difference(challenger, champion),
                number(values.get(Role.untrained)),
            )
        )
    columns = ("span", ">holdout rows", ">challenger", ">champion", ">difference", ">untrained")
    caption = f"{metric} by span, the newest first; a fall on an old span is what the challenger forgot"
    return table(caption, columns, rows)


def _shown(value: EvaluateOutcome) -> str:
    """Return the metric that tables by span show."""
    return main_metric(value.challenger) or NONE


def section(facts: StageFacts) -> Section:
    """Return verdicts, metrics and slices."""
    value: EvaluateOutcome = facts.outcome
    judged = facts.judged
    verdicts = judged.verdicts if judged else ()
    known = f"the champion is {value.champion_version}" if value.champion else "there is no champion yet"
    challenger, champion = queries.of_roles(value.by_queries)
    of = over(value.holdout_rows, value.ranked_among, value.sampled_from, value.holdout_pairs)
    rows = held(value.holdout_rows, value.sampled_from, value.holdout_pairs)
    measured = f"{rows.rstrip(',')}, {plural(value.ranked_among, 'item')} to find theirs among"
    if value.ranked_among < value.catalogue_items:
        measured += f", of {count(value.catalogue_items)} in the catalogue"
    if value.corpus_items < value.ranked_among:
        measured += f"; all models next to each other: {plural(value.corpus_items, 'item')} that no model chose"
    stored = facts.plan and judged
    refused = any(verdict.refuses for verdict in verdicts) or bool(judged and judged.refused)
    asks = bool(judged and judged.asks)
    title = "rejected" if refused else "asked" if asks else "accepted" if judged else "not judged yet"
    if judged and refused and judged.overrides:
        title = "rejected by the gates, accepted by a human"
    larger = judged.larger_class if judged else None
    return Section(
        title,
        (
            *_sentences(facts),
            *(by_human(judged.overrides) if judged else ()),
            *(asked(judged) if judged else ()),
            f"{measured}; {known}.",
            *_embedded_again(value),
            *(queries.truly_seen(challenger) if challenger else ()),
            *([value.golden_leak] if value.golden_leak else []),
            *(_weak_head(judged) if judged else ()),
            *(_weak_labels(judged) if judged else ()),
            *([forward_sentence(judged.forward)] if judged and judged.forward else []),
            *newest_span(value),
        ),
        tables=(
            *gates(verdicts),
            *([queries.by_queries(challenger, champion, of)] if challenger else []),
            metrics(
                value.challenger,
                value.champion,
                of,
                larger,
                judged.without_skill if judged else {},
                [name for name in names_of(Family.ranking) if value.holdout_pairs and name not in value.challenger],
            ),
            *tables(value),
            *_slices(value, judged.slices if judged else (), verdicts),
        ),
        files=(("verdicts", VERDICTS.key(run=facts.plan.run_key)),) if stored and facts.plan else (),
    )


ROUNDING = 1e-9
NOT_MEASURED = "not measured: too few items compete"
# Score of a model that always predicts the larger class, from that class's share of the rows.
LARGER_CLASS: dict[str, tuple[str, Callable[[float], float]]] = {
    "accuracy": ("accuracy", lambda share: share),
    "macro_f1": ("macro F1", lambda share: share / (1 + share)),
}


def _weak_head(judged: Judgement) -> tuple[str, ...]:
    """Return a warning if the classification head is no better than predicting the larger class or guessing."""
    found = judged.outcome.challenger
    why = []
    if judged.larger_class is not None and "macro_f1" in found:
        always = LARGER_CLASS["macro_f1"][1](judged.larger_class)
        if found["macro_f1"] <= always + ROUNDING:
            why.append(f"its macro F1 of {number(found['macro_f1'])} is not above the {number(always)} of naming the "
                       "larger class")  # fmt: skip
    if judged.auc_by_chance is not None and found.get("auc", 1.0) <= judged.auc_by_chance:
        why.append(f"its AUC of {number(found['auc'])} can't be told from that of guessing")
    if not why:
        return ()
    return (
        f"Warning: the classification head has learnt nothing: {'; '.join(why)}. Let it be solved at the end of the "
        "run with heads.classification.refit_rows, or leave it out.",
    )


def _weak_labels(judged: Judgement) -> Iterator[str]:
    """Yield a warning for each label head that is no better than a constant prediction."""
    for head, skill in SKILLS.items():
        found, constant = judged.outcome.challenger.get(skill.metric), judged.without_skill.get(skill.metric)
        if found is None or constant is None:
            continue
        gain = METRICS[skill.metric].sign * (found - constant)
        if gain <= ROUNDING or isnan(gain):
            yield (
                f"Warning: the head {head} has learnt nothing: its {skill.metric} of {number(found)} is no better "
                f"than the {number(constant)} of {skill.called}. Let it be solved at the end of the run with "
                f"heads.{head}.refit_rows, or leave it out."
            )


def gates(verdicts: tuple[Verdict, ...]) -> tuple[Table, ...]:
    """Return the verdict of each gate; empty without configured gates."""
    if not verdicts:
        return ()
    rows = [(gate_name(v), answered(v), v.severity, v.sentence, v.over or NONE) for v in verdicts]
    caption = "Quality gates; a critical one that refuses stops the release"
    return (table(caption, ("~gate", "verdict", "severity", "~in words", "~over"), rows),)


def answered(verdict: Verdict) -> Cell:
    """Make a cell of the answer of a gate."""
    match verdict.answer:
        case None:
            return Cell("does not apply", "○", "quiet")
        case "pass":
            return Cell("passed", "✓", "good")
        case "undecided":
            if verdict.refuses:
                return Cell("undecided, refused", "✕", "bad")
            return Cell("undecided, asked" if verdict.asks else "undecided", "?", "refused")
        case "fail":
            return Cell("refused", "✕", "bad") if verdict.refuses else Cell("warning", "!", "refused")


def by_human(overrides: Sequence[Override]) -> tuple[str, ...]:
    """Return a sentence for each human who let the run pass."""
    return tuple(
        f"{each.name} let it pass at {moment(each.at)} UTC although gates refused it: {each.reason}"
        for each in overrides
    )


def asked(judged: Judgement) -> tuple[str, ...]:
    """Return a sentence about the question to a person, or about the answer; empty if nobody was asked."""
    decision = judged.decision
    if decision is not None:
        did = {"accept": "accepted", "reject": "rejected", "hold": "accepted and held"}[decision.answer]
        return (
            f"{decision.name} {did} it at {moment(decision.at)} UTC, since gates were undecided: {decision.reason}",
        )
    if judged.asked is None or not judged.asks:
        return ()
    where = judged.asked.page or "the page of its flow run"
    return (f"It waits for a person's answer until {moment(judged.asked.until)} UTC, by Resume on {where}.",)


def over(holdout_rows: int, items: int, sampled_from: int | None, pairs: int) -> str:
    """Return the rows and items that an evaluation measured."""
    return f"{held(holdout_rows, sampled_from, pairs)} among {plural(items, 'item')}"


def held(rows: int, sampled_from: int | None, pairs: int) -> str:
    """Return how many holdout rows were measured, as in `20,000 of 1,240,000 holdout rows, a sample by hash,`.

    Args:
        pairs: rows over which ranking metrics are; named only if other rows were measured too.
    """
    found = plural(rows, "holdout row")
    if sampled_from is not None:
        found = f"{count(rows)} of {plural(sampled_from, 'holdout row')}, a sample by hash,"
    return f"{found.rstrip(',')}, {count(pairs)} of them pairs," if 0 < pairs < rows else found


def _embedded_again(value: EvaluateOutcome) -> Iterator[str]:
    """Yield a sentence for each released model that did not keep all vectors of its release."""
    for role, items in value.embedded_again.items():
        yield (
            f"The {role} embedded {plural(items, 'item')} of the {count(value.catalogue_items)} again, whose text or "
            "features it reads otherwise than in its release."
        )


def metrics(
    challenger: Mapping[str, float],
    champion: Mapping[str, float] | None,
    of: str,
    larger_class: float | None = None,
    without_skill: Mapping[str, float] = MappingProxyType({}),
    unmeasured: Sequence[str] = (),
) -> Table:
    """Return the challenger's metrics with the champion's on the same rows.

    Args:
        of: rows and corpus, as from `over`.
        larger_class: accuracy of always predicting the more frequent class; None: not known.
        without_skill: metrics of the best constant prediction.
        unmeasured: metrics for which too few items compete.
    """
    before = champion or {}
    rows = []
    for name, value in challenger.items():
        rows.append((name, number(value), number(before.get(name)), difference(value, before.get(name))))
        if larger_class is not None and name in LARGER_CLASS:
            said, of_larger = LARGER_CLASS[name]
            rows.append((f"{said} of always naming the larger class", number(of_larger(larger_class)), NONE, NONE))
        if name in without_skill:
            constant = SKILLS[METRICS[name].head or ""].called
            rows.append((f"{name} of {constant}", number(without_skill[name]), NONE, NONE))
    rows += [(name, NOT_MEASURED, NONE, NONE) for name in unmeasured]
    caption = f"Metrics on {queries.ALL_QUERIES}, unseen and seen together: {of}"
    return table(caption, ("metric", ">challenger", ">champion", ">difference"), rows)


def _sentences(facts: StageFacts) -> tuple[str, ...]:
    """Return the sentences of the gates that refused or could not tell; if none refused, one that says so."""
    if facts.judged is None:
        return ()
    verdicts = facts.judged.verdicts
    refused = refusals(verdicts)
    if refused or not verdicts:
        return refused or ("No gate is configured.",)
    return ("Every critical gate lets it pass.", *undecided(verdicts))


def _slices(
    value: EvaluateOutcome, slices: tuple[SliceMetrics, ...], verdicts: tuple[Verdict, ...]
) -> tuple[Table, ...]:
    """Return the slices by the first gate's metric; the one furthest below the whole holdout is first."""
    if not slices or not value.challenger:
        return ()
    gated = [verdict.metric for verdict in verdicts if verdict.metric in value.challenger]
    first, *others = dict.fromkeys([*gated[:1], *value.challenger])
    whole = value.challenger[first]
    worst_first = sorted(slices, key=lambda each: (each.metrics.get(first, whole) - whole, each.column, each.value))
    columns = ("slice", ">rows", f">{first}", ">difference", ">champion", *(f">{name}" for name in others))
    caption = f"Slices, the worst first; the difference is from the whole holdout's {first} of {number(whole)}"
    return (table(caption, columns, [_slice(each, first, others, whole) for each in worst_first]),)


def _slice(each: SliceMetrics, first: str, others: list[str], whole: float) -> tuple[str, ...]:
    ranked, champion = each.metrics.get(first), (each.champion or {}).get(first)
    rest = (number(each.metrics.get(name)) for name in others)
    name = f"{each.column} = {each.value}"
    return name, count(each.rows), number(ranked), difference(ranked, whole), number(champion), *rest
