"""Evaluate: the verdicts of the gates, the challenger compared with the champion, and where the model is weakest."""

from collections.abc import Mapping

from flows.presentation.model import Section, Table, passed, table
from flows.presentation.stages import models
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import count, difference, number, plural
from tasks.contracts.evaluation import SliceMetrics, Verdict
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.gates.verdicts import refusals, refused


def section(facts: StageFacts) -> Section:
    """Return verdicts, metrics and slices."""
    value: EvaluateOutcome = facts.outcome
    verdicts = facts.judged.verdicts if facts.judged else ()
    champion = f"the champion is {value.champion_version}" if value.champion else "there is no champion yet"
    measured = f"{plural(value.holdout_rows, 'holdout row')}, {plural(value.corpus_items, 'item')} to find theirs among"
    if value.corpus_items < value.catalogue_items:
        measured += f", of {count(value.catalogue_items)} in the catalogue"
    stored = facts.plan and facts.judged
    return Section(
        "rejected" if refused(verdicts) else "accepted" if facts.judged else "not judged yet",
        (*_sentences(facts), f"{measured}; {champion}.", *models.newest_span(value)),
        tables=(
            *gates(verdicts),
            metrics(value.challenger, value.champion),
            *models.tables(value),
            *_slices(value, verdicts),
        ),
        files=(("verdicts", f"runs/{facts.plan.run_key}/evaluate/verdicts.json"),) if stored and facts.plan else (),
    )


def gates(verdicts: tuple[Verdict, ...]) -> tuple[Table, ...]:
    """Return the verdict of each gate; nothing where none is configured."""
    if not verdicts:
        return ()
    rows = [(v.metric, passed(v.passed, v.severity), v.severity, v.sentence) for v in verdicts]
    caption = "Quality gates; a critical one that refuses stops the release"
    return (table(caption, ("gate", "verdict", "severity", "~in words"), rows),)


def metrics(challenger: Mapping[str, float], champion: Mapping[str, float] | None) -> Table:
    """Return the challenger's metrics with the champion's on the same rows."""
    before = champion or {}
    rows = [
        (name, number(value), number(before.get(name)), difference(value, before.get(name)))
        for name, value in challenger.items()
    ]
    return table("Metrics on the holdout", ("metric", ">challenger", ">champion", ">difference"), rows)


def _sentences(facts: StageFacts) -> tuple[str, ...]:
    """Return the sentences of the gates that refused; if none did, one that says so."""
    if facts.judged is None:
        return ()
    verdicts = facts.judged.verdicts
    return refusals(verdicts) or ("Every critical gate lets it pass." if verdicts else "No gate is configured.",)


def _slices(value: EvaluateOutcome, verdicts: tuple[Verdict, ...]) -> tuple[Table, ...]:
    """Return the slices by the first gate's metric; the one furthest below the whole holdout is first."""
    if not value.slices:
        return ()
    gated = [verdict.metric for verdict in verdicts if verdict.metric in value.challenger]
    first, *others = dict.fromkeys([*gated[:1], *value.challenger])
    whole = value.challenger[first]
    worst_first = sorted(
        value.slices, key=lambda each: (each.metrics.get(first, whole) - whole, each.column, each.value)
    )
    columns = ("slice", ">rows", f">{first}", ">difference", *(f">{name}" for name in others))
    caption = f"Slices, the worst first; the difference is from the whole holdout's {first} of {number(whole)}"
    return (table(caption, columns, [_slice(each, first, others, whole) for each in worst_first]),)


def _slice(each: SliceMetrics, first: str, others: list[str], whole: float) -> tuple[str, ...]:
    ranked = each.metrics.get(first)
    rest = (number(each.metrics.get(name)) for name in others)
    return f"{each.column} = {each.value}", count(each.rows), number(ranked), difference(ranked, whole), *rest
