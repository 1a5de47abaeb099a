"""The page of evaluate: the gates' verdicts first, then champion beside challenger, then where the model is weakest."""

from __future__ import annotations

from flows.pages.account import foot, head
from flows.pages.markdown import bold, code, table
from infra.store import Store
from tasks.contracts import RunPlan, SliceMetrics, Stage, Verdict
from tasks.gates import refused
from tasks.results import Judgement


def page(store: Store, plan: RunPlan, value: Judgement) -> str:
    """Markdown. Raises StoreError if the ledger is not readable."""
    outcome = value.outcome
    sentence = " ".join(v.sentence for v in value.verdicts if refused([v])) or "Every critical gate lets it pass."
    if not value.verdicts:
        sentence = "No gate is configured."
    lines = head(plan, "Rejected" if refused(value.verdicts) else "Accepted", sentence)
    lines += ["## Gates", ""]
    lines += table(
        ("", "metric", "severity", "verdict"), [(_judged(v), v.metric, v.severity, v.sentence) for v in value.verdicts]
    )
    champion, version = outcome.champion or {}, outcome.champion_version
    lines += [
        f"## Challenger beside {'champion' if version else 'nothing: no champion yet'}",
        "",
        f"{outcome.holdout_rows:,} holdout rows, {outcome.corpus_items:,} items to find theirs among."
        + (f" Champion: {code(version)}." if version else ""),
        "",
    ]
    lines += table(
        ("metric", ">challenger", ">champion", ">difference"),
        [
            (name, _number(number), _number(champion.get(name)), _difference(number, champion.get(name)))
            for name, number in outcome.challenger.items()
        ],
    )
    places = {"verdicts": f"runs/{plan.run_key}/evaluate/verdicts.json"}
    return "\n".join([*lines, *_slices(value), *foot(store, plan, Stage.evaluate, places)])


def _slices(value: Judgement) -> list[str]:
    """Slices by the first gate's metric, the one that is furthest below the whole holdout first."""
    outcome = value.outcome
    if not outcome.slices:
        return []
    gated = [verdict.metric for verdict in value.verdicts if verdict.metric in outcome.challenger]
    ranking = next(iter([*gated, *outcome.challenger]))
    whole = outcome.challenger[ranking]
    names = [ranking, *(name for name in outcome.challenger if name != ranking)]
    worst_first = sorted(
        outcome.slices, key=lambda one: (one.metrics.get(ranking, whole) - whole, one.column, one.value)
    )
    return [
        "## Slices, the worst drop first",
        "",
        f"Against the whole holdout's {ranking} of {_number(whole)}.",
        "",
        *table(
            ("slice", ">rows", f">{ranking}", ">difference", *(f">{name}" for name in names[1:])),
            [_slice(one, names, whole) for one in worst_first],
        ),
    ]


def _slice(one: SliceMetrics, names: list[str], whole: float) -> tuple[str, ...]:
    ranked = one.metrics.get(names[0])
    rest = (_number(one.metrics.get(name)) for name in names[1:])
    difference = "" if ranked is None else _difference(ranked, whole)
    return f"{one.column}={one.value}", f"{one.rows:,}", _number(ranked), difference, *rest


def _judged(verdict: Verdict) -> str:
    if verdict.passed is None:
        return "does not apply"
    if verdict.passed:
        return "passed"
    return bold({"critical": "REFUSED", "warning": "warning"}[verdict.severity])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _difference(value: float, champion: float | None) -> str:
    return "" if champion is None else f"{value - champion:+.4f}"
