"""The sections of a run's page that tell of its data, its machines, its speed, its settings and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from configs.load import load_config
from configs.schema import Config
from flows.reports.page import Section
from flows.reports.tables import Cell, Table, passed, table
from flows.reports.wording import NONE, count, dollars, duration, number, plural, share
from tasks.contracts import (
    Check,
    HealthOutcome,
    InferOutcome,
    ReleaseOutcome,
    Stage,
    TrainOutcome,
    ValidateOutcome,
    WarmupOutcome,
)
from tasks.findings import with_verdict
from tasks.history import PastRun
from tasks.ledger import totals


def checks(run: PastRun, refusals: tuple[Check, ...]) -> Section | None:
    """What validate and health found, and the rows that were set apart."""
    validated, healthy = run.outcome(Stage.validate), run.outcome(Stage.health)
    found: list[tuple[Stage, Check]] = [(Stage.health, check) for check in refusals]
    lines, tables = [], []
    if isinstance(validated, ValidateOutcome):
        found = [(Stage.validate, check) for check in validated.checks] + found
        lines.append(
            f"{count(validated.rows_in)} rows came in; {count(validated.rows_clean)} are clean and "
            f"{count(validated.rows_quarantined)} were set apart"
            + (f", in {validated.quarantine}." if validated.quarantine else ".")
        )
        if validated.reasons:
            reasons = sorted(validated.reasons.items(), key=lambda reason: -reason[1])
            rows = [(why, count(rows), share(rows / validated.rows_in)) for why, rows in reasons]
            tables.append(table("Rows set apart, by reason", ("reason", ">rows", ">of all rows"), rows))
    if isinstance(healthy, HealthOutcome):
        found += [(Stage.health, check) for check in healthy.checks]
        lines.append(
            f"Health on {healthy.device}: {plural(len(healthy.matmul_gflops), 'worker')}, "
            f"{min(healthy.matmul_gflops, default=0.0):,.1f} GFLOP/s on the slowest, "
            f"which takes {healthy.slowest_to_median:.2f} times as long as the median one; "
            + "".join(f"{name} {value:,.1f}; " for name, value in healthy.collectives.items())
            + f"{healthy.free_disk_gib:,.0f} GiB of disk free."
        )
    if found:
        rows = [(c.name, passed(c.passed, c.severity), stage.value, with_verdict(c)) for stage, c in found]
        tables = [table("What was checked before training", ("check", "", "stage", "~what was found"), rows), *tables]
    return Section("checks", "Data and machines", tuple(lines), tables=tuple(tables)) if lines or tables else None


def slices(run: PastRun) -> Section | None:
    """The metrics on parts of the holdout."""
    slices = run.judged.outcome.slices if run.judged else ()
    if not slices:
        return None
    names = list(slices[0].metrics)
    rows = [
        (f"{one.column} = {one.value}", count(one.rows), *(number(one.metrics.get(name)) for name in names))
        for one in slices
    ]
    made = table(
        "This run's metrics on parts of the holdout", ("slice", ">rows", *(f">{name}" for name in names)), rows
    )
    return Section("slices", "Slices", tables=(made,))


def speed(run: PastRun) -> Section | None:
    """What was made, and how fast."""
    facts: list[tuple[str, str]] = []
    for outcome in (result.outcome for result in run.results.values()):
        match outcome:
            case TrainOutcome():
                resumed = f", resumed at step {outcome.resumed_at_step}" if outcome.resumed_at_step is not None else ""
                facts += [
                    ("Training speed", f"{outcome.pairs_per_second:,.1f} pairs/s in {outcome.precision}"),
                    ("Rows trained on", count(outcome.rows_trained)),
                    ("Global steps", f"{outcome.first_step} to {outcome.last_step}{resumed}"),
                ]
            case InferOutcome():
                facts += [
                    ("Inference speed", f"{outcome.texts_per_second:,.1f} texts/s"),
                    ("Vectors", f"{count(outcome.vectors)}, {outcome.width} wide, in {outcome.prefix}"),
                    ("Shards", f"{outcome.shards}, {outcome.shards_reused} of them made by an earlier attempt"),
                ]
            case ReleaseOutcome():
                probed = f"at least {outcome.min_cosine:.6f} over {plural(outcome.probed, 'item')}"
                facts += [("Cosine of exported and released vectors", probed)]
            case _:
                pass
    infer = [one for one in run.attempts if one.stage is Stage.infer]
    vectors = next((r.outcome.vectors for r in run.results.values() if isinstance(r.outcome, InferOutcome)), 0)
    if (per_million := totals(infer, vectors).dollars_per_million_vectors) is not None:
        facts += [("Inference cost", f"{dollars(per_million)} per million vectors")]
    return Section("speed", "Throughput", tables=(_facts("What was made, and how fast", facts),)) if facts else None


def compiled(run: PastRun) -> Section | None:
    """The graphs of warmup and train, and the trial run."""
    warm, trained = run.outcome(Stage.warmup), run.outcome(Stage.train)
    lines, tables = [], []
    for stage, outcome in (("warmup", warm), ("train", trained)):
        if isinstance(outcome, WarmupOutcome | TrainOutcome) and outcome.graphs:
            lines.append(f"In {stage}: {outcome.graphs.sentence}.")
            if outcome.graphs.new:
                rows = [(Cell(new.name, code=True), new.where, f"{new.seconds:.1f} s") for new in outcome.graphs.new]
                tables.append(table(f"Graphs that {stage} met and warmup had not", ("graph", "where", ">took"), rows))
    if isinstance(warm, WarmupOutcome):
        if warm.compiled:
            lines.append(f"{plural(warm.compiled.graphs, 'graph')} in {warm.compiled.prefix}.")
        lines.append(
            f"The trial run on {warm.device} needed {warm.peak_memory_gib:.1f} GiB of memory at its peak; one "
            f"validation took {duration(warm.validation_seconds)}, one checkpoint {duration(warm.checkpoint_seconds)}."
        )
        rows = [
            (
                f"{shape.query_tokens} × {shape.item_tokens}",
                f"{shape.first_step_seconds:.2f} s",
                f"{shape.step_seconds:.3f} s",
            )
            for shape in warm.shapes
        ]
        tables.append(table("Steps by shape, in query × item tokens", ("shape", ">first step", ">later steps"), rows))
    return Section("graphs", "Warmup and graphs", tuple(lines), tables=tuple(tables)) if lines else None


def settings(run: PastRun) -> Section | None:
    """What differs from the base configuration."""
    if run.plan is None:
        return None
    base, own = _flat(_tree(load_config())), _flat(_tree(run.plan.config))
    keys = [key for key in dict.fromkeys([*base, *own]) if base.get(key) != own.get(key)]
    rows = [(Cell(key, code=True), _told(own.get(key)), _told(base.get(key))) for key in keys]
    if not rows:
        return Section("settings", "Settings", ("All as in configs/base.yaml.",))
    made = table("What differs from configs/base.yaml; all of it is in config.yaml", ("key", "~here", "~base"), rows)
    return Section("settings", "Settings", tables=(made,))


def origin(run: PastRun, parent_run: str | None) -> Section | None:
    """Which weights and data went in, what came out, and under which variables."""
    plan = run.plan
    if plan is None:
        return None
    facts: list[tuple[str, Cell | str]] = [
        ("Trained on", ", ".join(f"{span.name} v{span.version}" for span in plan.window)),
        (
            "The lineage had seen",
            plural(len(plan.history), "span") + (f", up to {plan.history[-1].span.name}" if plan.history else ""),
        ),
        (
            "Started from",
            f"{plan.parent.prefix}, step {plan.parent.step}" if plan.parent else "nothing: it began the lineage",
        ),
    ]
    if parent_run is not None:
        facts.append(("Which was made by", Cell(f"run {parent_run}", link=f"../{parent_run}/report.html")))
    trained = run.outcome(Stage.train)
    if isinstance(trained, TrainOutcome):
        facts.append(("Ended in", f"{trained.checkpoint.prefix}, model {trained.model_version}"))
    if run.release is not None:
        facts.append(("Released", f"{run.release.model_prefix} with {run.release.vectors_prefix}"))
    config = plan.config
    facts += [
        (
            "Accelerator",
            f"{config.accelerator}, {plural(config.train.workers, 'worker')}, compute {config.compute_of('train')}",
        ),
        ("In the workspace", Cell(f"runs/{run.run_key}/", code=True)),
    ]
    for result in run.results.values():
        if isinstance(result.outcome, WarmupOutcome | TrainOutcome):
            facts += [
                (f"{name} ({result.outcome.stage.value})", Cell(value, code=True))
                for name, value in result.outcome.environment.items()
            ]
    return Section("origin", "Where it comes from", tables=(_facts("Weights, data and environment", facts),))


def _tree(config: Config) -> dict[str, Any]:
    """With the keys that it has in YAML."""
    return config.model_dump(mode="json", by_alias=True)


def _facts(caption: str, facts: Iterable[tuple[str, Cell | str]]) -> Table:
    return table(caption, ("", "~"), facts)


def _flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _flat(value, f"{path}{key}.") if isinstance(value, dict) and value else {f"{path}{key}": value}
    return leaves


def _told(value: object) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)
