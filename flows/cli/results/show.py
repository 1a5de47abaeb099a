"""The outputs of the commands as people read them, on standard output."""

import shlex
from collections.abc import Iterable, Mapping

import yaml

from flows.cli.results import outputs
from flows.cli.results.publishing import show_targets
from flows.cli.results.rolling_back import RollbackOutput
from flows.cli.results.status import SpanRun, SpanStatus, StatusOutput
from flows.cli.terminal import console
from flows.cli.terminal.console import say, show_table
from flows.presentation import terminal
from flows.presentation.model import Section, ended_as
from flows.presentation.run.report import run_page
from flows.presentation.stages import evaluate
from flows.presentation.wording import NONE, count, dollars, moment, number, seconds, share
from infra.prefect_server import Server
from infra.store.base import Store
from tasks.contracts.results import Phases
from tasks.contracts.runs import Release
from tasks.runs.run_report import RunReport


def dry_run(output: outputs.DryRunOutput) -> None:
    """`millrace run --dry-run`: YAML that loads again, with the plan as its comment."""
    say(yaml.safe_dump(output.config, sort_keys=False).rstrip())
    if output.plan is None:
        say(f"# {output.sentence}")
        return
    plan = output.plan
    start = f"{plan.parent} (step {plan.parent_step})" if plan.parent else "nothing: it starts the lineage"
    if plan.again:
        start = f"{start}, the last accepted one; trained again: {', '.join(plan.again)}"
    say(
        f"# span:    {plan.span.name} v{plan.span.version}\n"
        f"# window:  {', '.join(f'{span.name} v{span.version}' for span in plan.window)}\n"
        f"# before:  {', '.join(plan.history) or 'none'}\n"
        f"# parent:  {start}\n"
        f"# run key: {plan.run_key}"
    )


def run(output: outputs.RunOutput) -> None:
    """`millrace run`."""
    if output.report is None:
        say(output.sentence)
        return
    say(f"run {output.report.run_key} over {output.report.span}, lineage {output.report.lineage}: {output.run_url}")
    _stages(output.stages)
    _verdict(output.report)
    if output.sentence:
        say(output.sentence)


def status(output: StatusOutput) -> None:
    """`millrace status`."""
    rows = (
        [
            span.name,
            f"v{span.version}",
            f"{span.rows:,}",
            ", ".join(span.trained),
            ", ".join([*(_ended(run, span.version) for run in span.runs), *_left_out(span)]),
        ]
        for span in output.spans
    )
    show_table(["span", "version", ">rows", "trained in", "runs"], rows)
    for line in output.lineages:
        trained = f"trained up to {line.span}" if line.span is not None else "imported weights, not trained on yet"
        say(f"lineage {line.name}: {trained}, step {line.step}, {line.checkpoint}")
    say(f"current release: {_release(output.release) if output.release else 'none yet'}")
    if output.hold is not None:
        say(f"{output.hold.sentence} Lift it with: millrace hold --off")
    show_targets(output.targets, output.release.number if output.release else None)
    totals = output.totals
    per_million = totals.dollars_per_million_vectors
    say(
        f"ledger: {totals.runs} runs, {totals.attempts} attempts, {share(totals.success_rate)} succeeded"
        + (f", {totals.running} running or lost" if totals.running else "")
        + f"; goodput {share(totals.goodput)}; {dollars(totals.cost)}"
        + (f", {dollars(per_million)} per million vectors" if per_million is not None else "")
    )
    say(f"seconds: {_phases(totals.seconds)}")
    if totals.attempts_by_class:
        show_table(
            ["failures", ">attempts", ">seconds"],
            (
                [failure.value, str(attempts), seconds(totals.seconds_by_class[failure])]
                for failure, attempts in totals.attempts_by_class.items()
            ),
        )


def releases(output: outputs.ReleasesOutput) -> None:
    """`millrace releases`."""
    if not output.releases and not output.unreadable:
        say("no release yet")
        return
    say(*(f"release {each.number} can't be shown: {each.trouble}" for each in output.unreadable))
    show_table(
        ["", ">release", "span", "made at", "model", ">vectors", "~metrics on the holdout", "~let pass by"],
        (
            [
                "current" if release.number == output.current else "pruned" * (release.number in output.pruned),
                str(release.number),
                release.span.name,
                moment(release.created_at),
                release.model.version,
                f"{release.vectors:,}",
                _metrics(release.metrics),
                "; ".join(f"{each.name}: {each.reason}" for each in release.overrides),
            ]
            for release in output.releases
        ),
    )


def rolled_back(output: RollbackOutput) -> None:
    """`millrace rollback`."""
    say(f"current release: {_by_model(output.release)}")
    if output.before is not None:
        say(f"before: {_by_model(output.before)}")
    if output.hold is None:
        say('The next run or refresh may release again. To prevent that: millrace hold --reason "why"')
    else:
        say(output.hold.sentence)
    show_targets(output.targets, output.release.number)


def report(store: Store, run_key: str) -> None:
    """`millrace report`: what the HTML report shows, but for the figures. Raises as `run_page`."""
    console.show(terminal.page(run_page(store, run_key)))


def server(output: Server) -> None:
    """`millrace up`."""
    how = "started" if output.started else "runs already"
    whose = f"process {output.pid}, {output.home}/server.log" if output.pid is not None else "PREFECT_API_URL"
    say(f"Prefect UI: {output.ui_url} ({how}; {whose})")
    if output.password_file is not None:
        say(f"Its pages ask for a password: cat {shlex.quote(output.password_file)}")


def _stages(stages: Iterable[outputs.StageLine]) -> None:
    rows = (
        [s.stage.value, "cached" if s.cached else "done" if s.done else NONE, str(s.attempts), seconds(s.seconds)]
        for s in stages
    )
    show_table(["stage", "", ">attempts", ">seconds"], rows)


def _verdict(run: RunReport) -> None:
    """Print the metrics, the verdicts of the gates, and how the run ended."""
    if run.metrics is not None:
        over = evaluate.over(run.holdout_rows or 0, run.items or 0, run.sampled_from)
        tables = (evaluate.metrics(run.metrics, run.champion, over), *evaluate.gates(run.verdicts))
        console.show(terminal.render(Section("Evaluate", evaluate.by_human(run.overrides), tables=tables), ""))
    if run.release is not None:
        say(f"{run.state} as {run.release}: model {run.model_version}, {count(run.vectors or 0)} vectors")
    elif run.state == "Rejected":
        say("Rejected: the champion stays, nothing was released")
    else:
        say("Unfinished: run the span again, and it continues from here")


def _ended(run: SpanRun, newest: int) -> str:
    """Return how a run over a span ended; one that trained an older version of it says so."""
    return f"v{run.version} " * (run.version != newest) + ended_as(run.state, run.release)


def _left_out(span: SpanStatus) -> list[str]:
    return [f"skipped in {lineage}: {reason}" for lineage, reason in span.skipped.items()]


def _release(release: Release) -> str:
    return (
        f"{release.number}, span {release.span.name}, model {release.model_prefix}, "
        f"{release.vectors:,} vectors in {release.vectors_prefix}"
    )


def _by_model(release: Release) -> str:
    return f"{release.number}, span {release.span.name}, model {release.model.version}"


def _phases(spent: Phases) -> str:
    parts = [f"{phase} {seconds(value)}" for phase, value in spent.model_dump().items() if value]
    return ", ".join(parts) or "none"


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in metrics.items())
