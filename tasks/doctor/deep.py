"""The checks of `millrace doctor --deep`: four of the pipeline's own jobs, with synthetic rows and a very small model.

Health, warmup, train, and train again from the checkpoint: on one machine, then on all configured machines. They stop
at the first failure. No lineage of the user changes: rows, model and checkpoints are their own, and the checkpoints are
deleted. Inputs are small on purpose: the aim is to test devices, network, compiler and workspace, not speed.
"""

import datetime as dt
import math
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from configs.load import load_config
from configs.prices import basis_of
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import commit
from tasks.contracts.jobs import HealthInputs, TrainInputs, WarmupInputs
from tasks.contracts.kinds import lineage_folder, lineage_lock
from tasks.contracts.outcomes import Check, HealthOutcome, TrainOutcome, WarmupOutcome
from tasks.contracts.references import CheckpointRef, CompileRef, RowsRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.contracts.workspace import ROWS
from tasks.data.rows import CORE, ROWS_KIND
from tasks.doctor.checks import Finding, Outcome
from tasks.foundation.clock import duration
from tasks.foundation.errors import CodeError, FailureClass, StageError
from tasks.foundation.nouns import plural
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage import run_stage
from tasks.running.stage_output import logger
from tasks.runs import ledger
from tasks.runs.host_records import last_findings
from tasks.runs.sums import sums_of

ROWS_PER_WORKER = 32
_MODEL = (
    "model.scratch={vocab_size: 400, hidden_size: 64, layers: 2, attention_heads: 2, intermediate_size: 128, "
    "max_tokens: 64}",
    "train.max_tokens={query: 16, item: 16}",
    "train.sequence_tokens=32",
    "train.log_every_steps=1",
    "evaluate.holdout_share=0.2",
    "evaluate.gates=[]",
    "release.gates=[]",
    "infer.max_tokens=16",
    "infer.sequence_tokens=32",
    "infer.batch_sequences=16",
)
_OF_THE_MACHINES = ("pipeline", "compute", "accelerator", "seed", "health", "warmup", "compiler", "batch", "cost")
_COLOURS = ("red", "blue", "green", "black", "white", "grey", "pink")
_THINGS = ("shoe", "lamp", "chair", "kettle", "towel", "knife", "scarf", "mirror", "clock", "bag")


def settings(config: Config, lineage: str, workers: int) -> Config:
    """Return the settings for one worker count: the user's machines with `workers`, all else synthetic.

    Each job is tried once, so that the user sees every failure.
    """
    base = load_config(None, _MODEL)
    train = base.train.model_copy(
        update={
            "workers": workers,
            "batch_rows": ROWS_PER_WORKER * workers,
            "compute": config.train.compute,
            "precision": config.train.precision,
            "watchdog_seconds": config.train.watchdog_seconds,
        }
    )
    changes: dict[str, object] = {name: getattr(config, name) for name in _OF_THE_MACHINES}
    changes |= {
        "lineage": lineage,
        "train": train,
        "infer": base.infer.model_copy(update={"precision": config.infer.precision}),
        "retry": base.retry.model_copy(update={"attempts": 1}),
    }
    return Config.model_validate(base.model_copy(update=changes).tree())


def write_rows(store: Store, run_key: str, span: str, count: int) -> RowsRef:
    """Write rows as validate would in the run `run_key`, and return their reference.

    Raises:
        StoreError: the workspace can't be written.
    """
    numbers = range(count)
    thing = [_THINGS[number * 7 % len(_THINGS)] for number in numbers]
    colour = [_COLOURS[number * 3 % len(_COLOURS)] for number in numbers]
    table = pa.table(
        {
            "row_id": [f"{span}-{number}" for number in numbers],
            "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * count, CORE["time"]),
            "query": [f"want a {colour[number]} {thing[number]} number {number}" for number in numbers],
            "item": [f"{colour[number]} {thing[number]} {number}" for number in numbers],
            "item_id": [f"{span}-{number}" for number in numbers],
            "label": pa.array([1.0] * count),
        }
    )
    prefix = ROWS.key(run=run_key, folder=span)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        pq.write_table(table, Path(folder) / "part-00000.parquet")
        commit(store, prefix, Path(folder), ROWS_KIND, {"span": span, "version": 1, "rows": count})
    return RowsRef(span=SpanRef(name=span, version=1), prefix=prefix, rows=count)


FIRST, COLLECTIVES, COMPILATIONS = "the first job", "collectives", "compilations"
STEP, WRITTEN, READ = "a training step", "a checkpoint written", "the checkpoint read"
CHECKS_OF = {  # check -> the names of health's checks in it; all others are in COLLECTIVES
    "workspace and room": {"store", "free memory", "free disk", "free workspace disk"},
    "devices": {
        *("neuron devices", "neuron cores", "neuron processes"),
        *("neuron ecc", "neuron ecc repairable", "neuron ecc counters"),
    },
    "network cards": {"efa interfaces"},
    "arithmetic": {"matmul fp32", "matmul bf16", "straggler"},
}
_IMAGES = "do worker image and machine image fit together? docs/aws.md, steps 1 and 3; docs/neuron-codes.md"
MEND = {
    FIRST: "look at queue, job definition, image and roles of the stack: docs/aws.md, step 2",
    "workspace and room": "look at the workspace, its permissions, and the disk of the machine",
    "devices": f"is health.machine the kind of machine of the stack? {_IMAGES}",
    "network cards": "look at AcceleratorType of the stack, and EFA in the machine image (infra/aws/ami.sh)",
    "arithmetic": "end the machine; `millrace hosts` shows whether it was excluded",
    COLLECTIVES: "between machines look at placement group, security group and FI_PROVIDER=efa; on one at its devices",
    COMPILATIONS: f"is compiler.target that of the machines? {_IMAGES}",
    STEP: f"look at train.precision, compiler.auto_cast, and whether train may write lineages/; {_IMAGES}",
    READ: "look at lineages/ and compile/ of the workspace, as another job sees them",
}
_SPANS = "deep-1", "deep-2"  # names of the two synthetic spans


def sizes(config: Config) -> tuple[int, ...]:
    """Return the worker counts, smallest first: the workers of one machine, then all of `train.workers`."""
    one = config.batch.processes_per_node if compute_of(config, Stage.train) == "batch" else 1
    return tuple(dict.fromkeys((min(one, config.train.workers), config.train.workers)))


def deep_findings(store: Store, config: Config) -> Iterator[Finding]:
    """Yield the finding of each check as it ends; the last finding has the time and the price.

    Raises:
        StoreError: the workspace can't be written from this machine.
        CancelledError: the command was interrupted.
    """
    began = time.monotonic()
    key = f"deep-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    plans = [_plan(store, settings(config, f"{key}-{workers}", workers)) for workers in sizes(config)]
    try:
        for plan in plans:
            with hold_lineage(store, lineage_lock(plan.run_key), logger().warning):
                passed = yield from _jobs(store, plan)
            if not passed:
                break
    finally:
        for plan in plans:
            store.delete(lineage_folder(plan.run_key))
    attempts = [one for plan in plans for each in (plan, _after(plan)) for one in ledger.records(store, each.run_key)]
    summed = sums_of(attempts)
    cost = "cost unknown" if summed.cost is None else f"${summed.cost:.2f}"
    spent = f"{duration(time.monotonic() - began)}, {cost} ({basis_of(summed.charges)})"
    yield Finding(name="time and price", outcome="ok", found=f"{spent}; records: runs/{key}-*", mend="")


def _jobs(store: Store, plan: RunPlan) -> Generator[Finding, None, bool]:
    """Run the four jobs for one worker count and yield their findings; return False if a job failed."""
    config, name = plan.config, FIRST
    try:
        health = run_stage(plan, HealthInputs(), HealthOutcome)
        yield from _of_health(config, health.checks, health.collectives)
        name = COMPILATIONS
        rows, others = (write_rows(store, plan.run_key, span, config.train.batch_rows) for span in _SPANS)
        warm = run_stage(plan, WarmupInputs(rows=(rows,), parent=None), WarmupOutcome)
        yield _finding(config, name, _compiled(warm))
        name = STEP
        first = _trained(plan, rows, warm.compiled)
        losses = ", ".join(f"{point.metrics['loss']:.4f}" for point in first.losses)
        steps = first.last_step - first.first_step
        yield _finding(config, name, f"{steps} step in {first.precision}, with a loss of {losses}")
        yield _finding(config, WRITTEN, f"{first.checkpoint.prefix}, complete, with checksums")
        name = READ
        again = _trained(_after(plan, first.checkpoint), others, warm.compiled)
        graphs = again.graphs
        met = f"; {plural(graphs.hits, 'graph')} compiled before, {graphs.misses} new" if graphs else ""
        yield _finding(config, name, f"another job trained on from step {again.first_step} to {again.last_step}{met}")
    except StageError as error:
        checks = last_findings(store, ledger.records(store, plan.run_key)) if name == FIRST else ()
        found = list(_of_health(config, checks, {}, error.failure))
        yield from found
        if all(finding.outcome != "FAIL" for finding in found):
            yield _finding(config, name, f"{error.failure}: {error}", "FAIL", error.failure)
        return False
    return True


def _of_health(
    config: Config, checks: Iterable[Check], rates: Mapping[str, float], failure: FailureClass | None = None
) -> Iterator[Finding]:
    """Yield one finding for each group of health's checks with results.

    Args:
        rates: bandwidth and latency of the collectives, by name.
        failure: class of the failed job; None: it passed.
    """
    grouped: dict[str, list[Check]] = {}
    for check in checks:
        name = next((name for name, members in CHECKS_OF.items() if check.name in members), COLLECTIVES)
        grouped.setdefault(name, []).append(check)
    for name in (*CHECKS_OF, COLLECTIVES):
        if members := grouped.get(name):
            failed = [check for check in members if not check.passed and check.severity == "critical"]
            found = [each.sentence for each in failed or members]
            if name == COLLECTIVES:
                found += [f"{rate} {value:g}" for rate, value in rates.items()]
            outcome: Outcome = "FAIL" if failed else "ok" if all(check.passed for check in members) else "warn"
            yield _finding(config, name, "; ".join(found), outcome, failure)


def _compiled(warm: WarmupOutcome) -> str:
    step = f"a step takes {warm.shapes[0].step_seconds:g} s"
    if warm.compiled is None:
        return f"none on {warm.device}; {step}"
    graphs = f"; {warm.graphs.sentence}" if warm.graphs else ""
    return f"{plural(warm.compiled.graphs, 'graph')}, {warm.compiled.seconds:.1f} s to compile; {step}{graphs}"


def _trained(plan: RunPlan, rows: RowsRef, compiled: CompileRef | None) -> TrainOutcome:
    inputs = TrainInputs(rows=(rows,), history=(), parent=plan.parent, compiled=compiled)
    outcome = run_stage(plan, inputs, TrainOutcome)
    losses = [point.metrics["loss"] for point in outcome.losses]
    if not losses or not all(map(math.isfinite, losses)):
        raise CodeError(f"the loss is {', '.join(map(str, losses)) or 'missing'}; a finite number was expected")
    return outcome


def _finding(
    config: Config, name: str, found: str, outcome: Outcome = "ok", failure: FailureClass | None = None
) -> Finding:
    workers = plural(config.train.workers, "worker")
    mend, ended_by = (MEND[name], failure) if outcome == "FAIL" else ("", None)
    return Finding(name=f"{name}, {workers}", outcome=outcome, found=found, mend=mend, failure=ended_by)


def _plan(store: Store, config: Config) -> RunPlan:
    span = SpanRef(name=_SPANS[0], version=1)
    return RunPlan(
        run_key=config.lineage,
        span=span,
        window=(span,),
        history=(),
        parent=None,
        workspace=store.uri,
        config=config,
    )


def _after(plan: RunPlan, parent: CheckpointRef | None = None) -> RunPlan:
    """Return the plan of a second run, which starts from the checkpoint of this one."""
    span = SpanRef(name=_SPANS[1], version=1)
    changes = {"run_key": f"{plan.run_key}-again", "span": span, "window": (span,), "parent": parent}
    return plan.model_copy(update=changes)
