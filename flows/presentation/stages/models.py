"""All models that an evaluation measured, next to each other: over all rows, their vectors, and span by span."""

from collections.abc import Iterator

from flows.presentation.model import Table, table
from flows.presentation.wording import NONE, count, difference, number
from tasks.contracts.evaluation import MAIN, Role, SpanMetrics, main_metric
from tasks.contracts.outcomes import EvaluateOutcome


def tables(value: EvaluateOutcome) -> Iterator[Table]:
    """Yield a table of the models' metrics, one of their vectors, and one by span, where these were measured."""
    if not value.measured:
        return
    rows, items = count(value.holdout_rows), count(value.corpus_items)
    over = [each.metrics for each in value.measured]
    yield _by_model(value, over, f"Every model on the same {rows} holdout rows, among the same {items} items")
    if value.golden:
        golden = [value.golden.get(each.role, {}) for each in value.measured]
        yield _by_model(value, golden, f"Every model on the {count(value.golden_rows)} rows of the golden set")
    yield _by_model(value, [each.vectors for each in value.measured], f"Vectors of the {items} items by each model")
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
