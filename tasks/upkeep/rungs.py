"""The smoke checks, from the results of the stages: sentences, numbers, and the first place to look after a failure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from configs.schema.config import Config
from tasks.contracts.outcomes import Check, TrainOutcome, WarmupOutcome
from tasks.contracts.stages import Stage, compute_of
from tasks.foundation.errors import StageError
from tasks.upkeep.smoke_report import Rung

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
    FIRST: "queue, job definition, image and roles of the stack: docs/aws.md, step 2; then `millrace doctor`",
    "workspace and room": "the workspace, its permissions, and the disk of the machine",
    "devices": f"is health.machine the kind of machine of the stack? {_IMAGES}",
    "network cards": "AcceleratorType of the stack, and EFA in the machine image (infra/aws/ami.sh)",
    "arithmetic": "end the machine; `millrace hosts` shows whether it was excluded",
    COLLECTIVES: "between machines, placement group, security group and FI_PROVIDER=efa; on one, its devices",
    COMPILATIONS: f"is compiler.target that of the machines? {_IMAGES}",
    STEP: f"train.precision and compiler.auto_cast; {_IMAGES}",
    WRITTEN: "the role of train and the room of the workspace, for lineages/",
    READ: "lineages/ and compile/ of the workspace, as another job sees them",
}


def machines_of(config: Config) -> int:
    """Return the number of machines that the workers of train take."""
    on_batch = compute_of(config, Stage.train) == "batch"
    return max(1, config.train.workers // config.batch.processes_per_node) if on_batch else 1


def held(config: Config, name: str, sentences: Sequence[str], numbers: Mapping[str, float] | None = None) -> Rung:
    """Return a passed check; `numbers` by name."""
    return _rung(config, name, sentences, dict(numbers or {}), "")


def broken(config: Config, name: str, error: StageError) -> Rung:
    """Return the check that failed with a stage's error."""
    return _rung(config, name, [f"{error.failure}: {error}"], {}, MEND[name])


def of_health(config: Config, checks: Iterable[Check], rates: Mapping[str, float]) -> Iterator[Rung]:
    """Yield one check for each group of health's checks with results; `rates` are the collectives' rates."""
    grouped: dict[str, list[Check]] = {}
    for check in checks:
        name = next((name for name, members in CHECKS_OF.items() if check.name in members), COLLECTIVES)
        grouped.setdefault(name, []).append(check)
    for name in (*CHECKS_OF, COLLECTIVES):
        if members := grouped.get(name):
            failed = [check for check in members if not check.passed and check.severity == "critical"]
            numbers = dict(rates) if name == COLLECTIVES else {}
            sentences = [f"{'' if each.passed or failed else 'warning: '}{each.sentence}" for each in failed or members]
            yield _rung(config, name, sentences, numbers, MEND[name] if failed else "")


def of_warmup(config: Config, warm: WarmupOutcome) -> Rung:
    """Return the check of compiling the graphs of training, update and embedding."""
    steps, known = warm.shapes[0], warm.compiled
    numbers = {"first_step_seconds": steps.first_step_seconds, "step_seconds": steps.step_seconds}
    if known is None:
        return held(config, COMPILATIONS, [f"none on {warm.device}; a step takes {steps.step_seconds:g} s"], numbers)
    sentence = f"{known.graphs} graphs, {known.seconds:.1f} s to compile; a step takes {steps.step_seconds:g} s"
    numbers |= {"graphs": known.graphs, "compile_seconds": known.seconds}
    return held(config, COMPILATIONS, [sentence, *([warm.graphs.sentence] if warm.graphs else [])], numbers)


def of_step(config: Config, outcome: TrainOutcome) -> Rung:
    """Return the check of the first training."""
    losses = ", ".join(f"{point.metrics['loss']:.4f}" for point in outcome.losses)
    sentence = f"{outcome.last_step - outcome.first_step} step in {outcome.precision}, with a loss of {losses}"
    return held(config, STEP, [sentence], {"pairs_per_second": outcome.pairs_per_second})


def of_checkpoint(config: Config, outcome: TrainOutcome) -> Rung:
    """Return the check of the checkpoint that a training wrote."""
    return held(config, WRITTEN, [f"{outcome.checkpoint.prefix}, complete, with checksums"])


def of_reading(config: Config, outcome: TrainOutcome) -> Rung:
    """Return the check of a second training, which began at the checkpoint of the first."""
    graphs = outcome.graphs
    met = f"; {graphs.hits} graphs that were compiled before, {graphs.misses} new" if graphs else ""
    return held(config, READ, [f"another job trained on from step {outcome.first_step} to {outcome.last_step}{met}"])


def _rung(config: Config, name: str, sentences: Sequence[str], numbers: dict[str, float], mend: str) -> Rung:
    return Rung(
        name=name,
        workers=config.train.workers,
        machines=machines_of(config),
        passed=not mend,
        sentences=tuple(sentences),
        numbers=numbers,
        mend=mend,
    )
