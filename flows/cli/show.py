"""The outputs of the commands as people read them, on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.cli import outputs
from infra.prefect_server import Server
from tasks.contracts import CurvePoint, Phases, Release, Verdict
from tasks.findings import with_verdict
from tasks.ingest import IngestSummary
from tasks.report import RunReport

_NOWHERE_COLUMNS = 160  # in a file or a pipe, where no terminal says how wide it is


def ingested(output: IngestSummary) -> None:
    """`millrace ingest`."""
    rows = ([s.name, f"v{s.version}", f"{s.rows:,}", "new" if s.new else "as before"] for s in output.spans)
    _table(["span", "version", ">rows", ""], rows)
    _say(f"{output.rows:,} rows in {len(output.spans)} spans, from {output.files} file(s)")


def dry_run(output: outputs.DryRunOutput) -> None:
    """`millrace run --dry-run`: YAML that loads again, with the plan as its comment."""
    _say(yaml.safe_dump(output.config, sort_keys=False).rstrip())
    if output.plan is None:
        _say(f"# {output.sentence}")
        return
    plan = output.plan
    start = f"{plan.parent} (step {plan.parent_step})" if plan.parent else "nothing: it starts the lineage"
    _say(
        f"# span:    {plan.span.name} v{plan.span.version}\n"
        f"# window:  {', '.join(f'{span.name} v{span.version}' for span in plan.window)}\n"
        f"# before:  {', '.join(plan.history) or 'none'}\n"
        f"# parent:  {start}\n"
        f"# run key: {plan.run_key}"
    )


def run(output: outputs.RunOutput) -> None:
    """`millrace run`."""
    if output.report is None:
        _say(output.sentence)
        return
    _say(f"run {output.report.run_key} over {output.report.span}, lineage {output.report.lineage}: {output.run_url}")
    _stages(output.stages)
    _verdict(output.report)


def status(output: outputs.StatusOutput) -> None:
    """`millrace status`."""
    rows = (
        [
            span.name,
            f"v{span.version}",
            f"{span.rows:,}",
            ", ".join(span.trained),
            ", ".join(map(_run_state, span.runs)),
        ]
        for span in output.spans
    )
    _table(["span", "version", ">rows", "trained in", "runs"], rows)
    for line in output.lineages:
        trained = f"trained up to {line.span}" if line.span is not None else "imported weights, not trained on yet"
        _say(f"lineage {line.name}: {trained}, step {line.step}, {line.checkpoint}")
    _say(f"current release: {_release(output.release) if output.release else 'none yet'}")
    totals = output.totals
    per_million = totals.dollars_per_million_vectors
    _say(
        f"ledger: {totals.runs} runs, {totals.attempts} attempts, {_share(totals.success_rate)} succeeded"
        + (f", {totals.running} running or lost" if totals.running else "")
        + f"; goodput {_share(totals.goodput)}; ${totals.cost:.2f}"
        + (f", ${per_million:.2f} per million vectors" if per_million is not None else "")
    )
    _say(f"seconds: {_phases(totals.seconds)}")
    if totals.attempts_by_class:
        _table(
            ["failures", ">attempts", ">seconds"],
            (
                [failure.value, str(attempts), f"{totals.seconds_by_class[failure]:.1f}"]
                for failure, attempts in totals.attempts_by_class.items()
            ),
        )


def releases(output: outputs.ReleasesOutput) -> None:
    """`millrace releases`."""
    if not output.releases:
        _say("no release yet")
        return
    _table(
        ["", ">release", "span", "model", ">vectors", "metrics", "made at"],
        (
            [
                "current" if release.number == output.current else "",
                str(release.number),
                release.span.name,
                release.model.version,
                f"{release.vectors:,}",
                _metrics(release.metrics),
                release.created_at[:19],
            ]
            for release in output.releases
        ),
    )


def rolled_back(output: outputs.RollbackOutput) -> None:
    """`millrace rollback`."""
    before = f", it was {output.previous}" if output.previous is not None else ""
    _say(f"current release: {_release(output.release)}{before}")


def report(output: outputs.ReportOutput) -> None:
    """`millrace report`."""
    told = output.report
    _say(f"run {told.run_key} over {told.span}, lineage {told.lineage}: {told.state}")
    if len(output.window) > 1:
        _say(f"trained on {', '.join(span.name for span in output.window)}")
    _stages(output.stages)
    if output.checks:
        _table(
            ["check", "of", "", "what was found"],
            ([c.name, c.stage.value, _passed(c.passed, c.severity), with_verdict(c)] for c in output.checks),
        )
    if output.quarantined:
        _say("quarantined rows: " + ", ".join(f"{rows:,} {reason}" for reason, rows in output.quarantined.items()))
    if output.losses:
        _say("losses: " + ", ".join(f"step {p.step}: {_metrics(p.metrics)}" for p in _thinned(output.losses)))
    if output.curve:
        names = list(output.curve[0].metrics)
        _table(
            [">step", *(f">{name}" for name in names)],
            ([str(p.step), *(_number(p.metrics.get(name)) for name in names)] for p in output.curve),
        )
    if output.slices:
        names = list(output.slices[0].metrics)
        _table(
            ["slice", ">rows", *(f">{name}" for name in names)],
            (
                [f"{s.column}={s.value}", str(s.rows), *(_number(s.metrics.get(name)) for name in names)]
                for s in output.slices
            ),
        )
    for graphs in output.graphs:
        _say(f"graphs in {graphs.stage.value}: {graphs.sentence}")
    _verdict(told)
    _table(
        ["attempt", "ended as", ">seconds", "of them", ">cost", "message"],
        (
            [
                f"{a.stage.value} {a.attempt}",
                a.failure.value if a.failure else ("done" if a.ended_at else "no end on record"),
                f"{a.wall_seconds:.1f}",
                _phases(a.seconds),
                f"${a.cost:.2f}",
                a.message,
            ]
            for a in output.ledger
        ),
    )


def server(output: Server) -> None:
    """`millrace up`."""
    how = "started" if output.started else "runs already"
    whose = f"process {output.pid}, {output.home}/server.log" if output.pid is not None else "PREFECT_API_URL"
    _say(f"Prefect UI: {output.ui_url} ({how}; {whose})")


def _stages(stages: Iterable[outputs.StageLine]) -> None:
    rows = (
        [s.stage.value, "cached" if s.cached else "done" if s.done else "-", str(s.attempts), f"{s.seconds:.1f}"]
        for s in stages
    )
    _table(["stage", "", ">attempts", ">seconds"], rows)


def _verdict(told: RunReport) -> None:
    """Metrics beside the champion's, what the gates said, and what came of it."""
    if told.metrics is not None:
        champion = told.champion or {}
        _table(
            ["metric", f">{told.span}", f">champion {told.champion_version or '(none yet)'}", ">difference"],
            (
                [name, _number(value), _number(champion.get(name)), _difference(value, champion.get(name))]
                for name, value in told.metrics.items()
            ),
        )
    for verdict in told.verdicts:
        _say(f"{_judged(verdict)}: {verdict.sentence}")
    if told.release is not None:
        _say(f"Released as {told.release}: model {told.model_version}, {told.vectors or 0:,} vectors")
    elif told.state == "Rejected":
        _say("Rejected: the champion stays, nothing was released")
    else:
        _say("Unfinished: run the span again, and it goes on from here")


def _judged(verdict: Verdict) -> str:
    return "does not apply" if verdict.passed is None else _passed(verdict.passed, verdict.severity)


def _passed(passed: bool, severity: str) -> str:
    return "passed" if passed else {"critical": "REFUSED", "warning": "warning"}[severity]


def _span(span: outputs.SpanStatus) -> list[str]:
    runs = ", ".join(_run_state(run) for run in span.runs)
    return [span.name, f"v{span.version}", f"{span.rows:,}", ", ".join(span.trained), runs]


def _run_state(run: outputs.SpanRun) -> str:
    return f"{run.state} as {run.release}" if run.release is not None else run.state


def _release(release: Release) -> str:
    return (
        f"{release.number}, span {release.span.name}, model {release.model_prefix}, "
        f"{release.vectors:,} vectors in {release.vectors_prefix}"
    )


def _phases(seconds: Phases) -> str:
    told = [f"{phase} {value:.1f}" for phase, value in seconds.model_dump().items() if value]
    return ", ".join(told) or "none"


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _difference(value: float, champion: float | None) -> str:
    return "" if champion is None else f"{value - champion:+.4f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _thinned(points: tuple[CurvePoint, ...], most: int = 10) -> tuple[CurvePoint, ...]:
    """At most `most` points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return points
    return tuple(points[round(i * (len(points) - 1) / (most - 1))] for i in range(most))


def _table(columns: list[str], rows: Iterable[list[str]]) -> None:
    """A table without frame; `>` before a column's name sets its numbers to the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if name != column else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a message are no markup
    _console().print(table)


def _say(text: str) -> None:
    _console().print(text, markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _NOWHERE_COLUMNS)
