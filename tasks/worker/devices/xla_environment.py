"""The environment variables of torch-xla, set in one place before its import, and recorded with the run.

It also decides whether XLA uses NeuronCores or the CPU.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from configs.schema.compute import CompilerConfig
from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.devices import neuron_environment as neuron
from tasks.worker.process.job import Rank

PREFIX = "millrace-graphs-"


def folder_of_machine(rank: Rank) -> Path:
    """Return the folder shared by this machine's workers under one torchrun, which lives for one attempt."""
    if rank.local_world == 1:
        return own_folder()
    return Path(tempfile.gettempdir()) / f"{PREFIX}{os.getuid()}-{os.getppid()}"


def own_folder() -> Path:
    """Return an empty folder for this process alone."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


DEVICE = "PJRT_DEVICE"
CACHE = "XLA_PERSISTENT_CACHE_PATH"
FLAGS = "XLA_FLAGS"
LEVEL = "--xla_backend_optimization_level"
COLLECTING = "NEURON_EXTRACT_GRAPHS_ONLY"  # set by neuron_parallel_compile around a trial run


@dataclass(frozen=True)
class XlaEnvironment:
    """XLA's device kind, compiler and environment variables.

    Attributes:
        neuron: True: NeuronCores, which load compiled graphs from disk; False: the CPU.
        cache: the folder of compiled graphs; on NeuronCores all workers of a machine share it.
        variables: all variables set here.
        compiler: name and version.
        flags: of the compiler.
    """

    neuron: bool
    cache: Path
    variables: dict[str, str]
    compiler: str
    flags: str


def prepare_environment(config: Config | None, precision: str, rank: Rank) -> XlaEnvironment:
    """Set the variables and return them. Without `config` the compiler's defaults apply.

    Raises:
        ConfigError: torch-xla is not installed, or the environment contradicts the configuration.
    """
    if importlib.util.find_spec("torch_xla") is None:
        raise ConfigError("accelerator: xla needs torch-xla, which is not installed: pip install -e '.[worker,xla]'")
    return _neuron(config, precision, rank) if means_neuron() else _processor(config)


def means_neuron() -> bool:
    """Return True if XLA's devices are NeuronCores, False for the CPU. Opens no device."""
    installed = importlib.util.find_spec("torch_neuronx") is not None
    return is_collecting() or (installed and os.environ.get(DEVICE, "NEURON") == "NEURON")


def is_collecting() -> bool:
    """Return True in a trial run: graphs are collected but not executed, and all numbers are zeros."""
    return os.environ.get(COLLECTING) == "1"


def check_place(rank: Rank, world: int, ordinal: int) -> None:
    """Raise ConfigError unless the runtime sees `rank`; with a world of one, sums would be silently wrong."""
    if (world, ordinal) != (rank.world, rank.index):
        raise ConfigError(
            f"the Neuron runtime sees worker {ordinal} of {world}, but this is worker {rank.index} of {rank.world}: "
            "sums over the workers would be wrong. Remove NEURON_PJRT_*, NEURON_RT_VISIBLE_CORES, NEURON_RT_NUM_CORES "
            "and PJRT_LOCAL_* from the environment, and start the workers with torchrun"
        )


def _neuron(config: Config | None, precision: str, rank: Rank) -> XlaEnvironment:
    inherited = os.environ.get(neuron.CACHE) if is_collecting() else None  # set by the collecting process
    cache = Path(inherited) if inherited else folder_of_machine(rank)
    variables = {neuron.CACHE: str(cache)}
    if config is not None:
        variables = neuron.neuron_environment(config, precision, cache, rank.world // rank.local_world)
    os.environ.update(variables)
    importlib.import_module("torch_neuronx")  # makes NeuronCores the device of torch-xla
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("neuronx-cc", "torch-neuronx")]
    rounding = variables.get("NEURON_RT_STOCHASTIC_ROUNDING_EN", "")
    return XlaEnvironment(True, cache, variables, ", ".join(versions), f"{variables.get(neuron.FLAGS, '')} {rounding}")


def _processor(config: Config | None) -> XlaEnvironment:
    cache = own_folder()  # this runtime loads no graphs from disk, and new graphs are counted by file
    variables = {DEVICE: "CPU", CACHE: str(cache), "XLA_PERSISTENT_CACHE_READ_ONLY": "0"}
    if config is not None and config.compiler.optlevel is not None:
        variables[FLAGS] = _processor_flags(config.compiler)
    os.environ.update(variables)
    compiler = f"torch-xla {importlib.metadata.version('torch-xla')} for processors"
    return XlaEnvironment(False, cache, variables, compiler, os.environ.get(FLAGS, ""))


def _processor_flags(compiler: CompilerConfig) -> str:
    """Keep the user's flags, except the optimisation level, which the configuration sets."""
    kept = [flag for flag in os.environ.get(FLAGS, "").split() if not flag.startswith(LEVEL)]
    return " ".join([*kept, f"{LEVEL}={compiler.optlevel}"])
