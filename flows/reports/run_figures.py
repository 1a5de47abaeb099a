"""The pictures of one run: what training saw, what the holdout said meanwhile, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

from flows.reports.figures import LINES, MOST_MARKERS, PHASES, Picture, canvas, legend
from flows.reports.wording import duration, number
from tasks.contracts import CurvePoint, TrainOutcome
from tasks.ledger import LedgerRecord

MOST_ATTEMPTS = 30  # in the picture; the table has all
RANKING = ("recall@1", "recall@10", "mrr@10", "ndcg@10")


def curves(trained: TrainOutcome) -> list[Picture]:
    """Losses and holdout metrics over the global steps; those of which nothing was logged are left out."""
    names = list(dict.fromkeys(name for point in trained.curve for name in point.metrics))
    ranking = [name for name in names if name in RANKING]
    others = [name for name in names if name not in RANKING]
    losses = list(dict.fromkeys(name for point in trained.losses for name in point.metrics))
    asked = (
        ("Training loss", "as the optimiser saw it", trained.losses, losses),
        ("Retrieval on the holdout", "during training, on a part of the holdout", trained.curve, ranking),
        ("Classification on the holdout", "during training, on a part of the holdout", trained.curve, others),
    )
    return [_lines(title, about, points, names) for title, about, points, names in asked if points and names]


def stages(attempts: Sequence[LedgerRecord]) -> Picture:
    """One bar for each attempt, in the order in which they started, cut into phases."""
    shown = attempts[-MOST_ATTEMPTS:]
    with canvas(70 + 24 * len(shown)) as drawing:
        axes, positions = drawing.axes, range(len(shown))
        ends = [0.0] * len(shown)
        for phase, style in PHASES.items():
            parts = [getattr(one.seconds, phase) / 60 for one in shown]
            if any(parts):
                axes.barh(
                    positions, parts, left=ends, height=0.72, edgecolor="white", linewidth=0, label=phase, **style
                )
                ends = [end + part for end, part in zip(ends, parts, strict=True)]
        longest = max(ends, default=0.0)
        for position, (one, end) in enumerate(zip(shown, ends, strict=True)):
            axes.text(
                end + longest * 0.012, position, duration(one.wall_seconds) + _ended(one), va="center", fontsize=8.5
            )
        axes.set_yticks(positions, [f"{one.stage.value} {one.attempt}" for one in shown])
        axes.invert_yaxis()
        axes.set_xlim(0, (longest or 1.0) * 1.34)
        axes.set_xlabel("minutes")
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if any(ends):
            legend(axes, columns=3)
        told = "; ".join(f"{one.stage.value} {one.attempt} {duration(one.wall_seconds)}{_ended(one)}" for one in shown)
        cut = f" The newest {MOST_ATTEMPTS} of {len(attempts)} attempts." if len(attempts) > len(shown) else ""
        title, caption = "Where the time went", f"each attempt, cut into phases.{cut}"
        return drawing.picture(title, caption, f"Bar chart of the attempts' wall time: {told}.")


def _lines(title: str, about: str, points: Sequence[CurvePoint], names: Sequence[str]) -> Picture:
    """Some numbers over the steps, on one scale."""
    from matplotlib.ticker import MaxNLocator

    with canvas() as drawing:
        axes = drawing.axes
        ends = []
        for name, style in zip(names, LINES * len(names), strict=False):
            known = [(point.step, point.metrics[name]) for point in points if name in point.metrics]
            steps, values = zip(*known, strict=True)
            every = max(1, len(known) // MOST_MARKERS * 3)
            axes.plot(steps, values, **style, markevery=every, label=name)
            ends.append(f"{name} from {number(values[0])} to {number(values[-1])}")
        axes.set_xlabel("global step")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.03, y=0.08)
        legend(axes, columns=2 if len(names) > 3 else 3)
        steps = f"steps {points[0].step} to {points[-1].step}"
        return drawing.picture(title, f"{about}, {steps}", f"Line chart over {steps}: {'; '.join(ends)}.")


def _ended(one: LedgerRecord) -> str:
    """What there is to say beside the time; nothing of what went well."""
    return f" {one.failure.value}" if one.failure else "" if one.ended_at else " no end yet"
