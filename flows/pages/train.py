"""The page of train: losses and holdout metrics over the steps, speed, precision, graphs."""

from __future__ import annotations

from collections.abc import Mapping

from flows.pages.account import foot, head
from flows.pages.figures import by_name, draw
from flows.pages.links import tensorboard
from flows.pages.markdown import code, counted, image, table
from flows.pages.warmup import environment_section, graphs_section
from infra.store import Store
from tasks.contracts import RunPlan, Stage, TrainOutcome

_CLASSIFICATION = ("accuracy", "macro_f1", "auc")


def page(store: Store, plan: RunPlan, value: TrainOutcome) -> str:
    """Markdown with pictures. Raises StoreError if the ledger is not readable."""
    steps = counted(value.last_step - value.first_step, "step")
    lines = head(plan, f"{steps} over {counted(value.rows_trained, 'pair')}", _sentence(value))
    lines += [*_pictures(value), ""]
    lines += table(
        ("", "value"),
        [
            ("steps of the lineage", f"{value.first_step:,} to {value.last_step:,}"),
            ("resumed at step", "not at all" if value.resumed_at_step is None else f"{value.resumed_at_step:,}"),
            ("pairs per second", f"{value.pairs_per_second:,.1f}"),
            ("workers", str(plan.config.train.workers)),
            ("accelerator", plan.config.accelerator),
            ("precision", value.precision),
            ("model", code(value.model_version)),
            ("curves", tensorboard(plan)),
        ],
    )
    if value.curve:
        first, last = value.curve[0], value.curve[-1]
        lines += ["## Holdout, before and after", ""]
        lines += table(
            ("metric", f">step {first.step}", f">step {last.step}", ">difference"),
            [_change(name, first.metrics.get(name), number) for name, number in last.metrics.items()],
        )
    lines += graphs_section(value.graphs)
    lines += environment_section(value.environment)
    return "\n".join([*lines, *foot(store, plan, Stage.train, {"checkpoint": value.checkpoint.prefix})])


def _sentence(value: TrainOutcome) -> str:
    if not value.losses:
        return "No loss was logged; train.log_every_steps is more than there were steps."
    first, last = value.losses[0].metrics, value.losses[-1].metrics
    return f"The loss went from {first['loss']:.4f} to {last['loss']:.4f}."


def _pictures(value: TrainOutcome) -> list[str]:
    """Losses, then metrics of finding items, then those of classes; what was not measured has none."""
    metrics = by_name((point.step, point.metrics) for point in value.curve)
    classes = {name: curve for name, curve in metrics.items() if name in _CLASSIFICATION}
    shown: Mapping[str, Mapping[str, list[tuple[int, float]]]] = {
        "Training losses over the steps": by_name((point.step, point.metrics) for point in value.losses),
        "Holdout metrics of retrieval over the steps": {n: c for n, c in metrics.items() if n not in classes},
        "Holdout metrics of classification over the steps": classes,
    }
    return [image(words, draw(curves)) for words, curves in shown.items() if curves]


def _change(name: str, before: float | None, after: float) -> tuple[str, str, str, str]:
    if before is None:
        return name, "", f"{after:.4f}", ""
    return name, f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}"
