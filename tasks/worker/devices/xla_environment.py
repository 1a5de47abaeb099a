"""The environment variables of torch-xla and of NeuronCores, made here from the typed configuration.

They are set in one place before torch-xla's import and the runtime's start, and recorded with the run. This also
decides whether XLA uses NeuronCores or the CPU.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.schema.compute import CompilerConfig
from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.process.job import Rank

NEURON_FLAGS = "NEURON_CC_FLAGS"
NEURON_CACHE = "NEURON_COMPILE_CACHE_URL"
# Switches of older releases that turn every float32 into bf16 and override train.precision.
_DOWNCASTS = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
_EFA = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",  # for kernels before 5.15
    "CCOM_SOCKET_IFNAME": "eth0",
    "XLA_TRANSFER_SEED_ASYNC": "1",
}


def neuron_environment(
    config: Config, precision: str, cache: Path, nodes: int = 1, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables for a run on `nodes` machines; `cache` is the folder of compiled graphs.

    Args:
        inherited: the environment to which they are added; it is checked, not changed.

    Raises:
        ConfigError: compiler.auto_cast conflicts with the precision, or `inherited` with the configuration.
    """
    compiler = config.compiler
    flags = checked_flags(compiler, precision, inherited)
    rounding = precision == "bf16-weights"
    variables = {
        NEURON_FLAGS: flags,
        NEURON_CACHE: str(cache.absolute()),
        "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1" if rounding else "0",
        "NEURON_RT_EXEC_TIMEOUT": str(compiler.exec_timeout_seconds),
        "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB": str(compiler.gradient_bucket_mib),
        "XLA_USE_32BIT_LONG": "1",  # a NeuronCore has no 64-bit numbers; 32 bits suffice for all indices
    }
    if rounding:
        variables["NEURON_RT_STOCHASTIC_ROUNDING_SEED"] = str(compiler.rounding_seed)
    if nodes > 1 or compiler.efa:
        variables |= _EFA
    return variables


def checked_flags(compiler: CompilerConfig, precision: str, inherited: Mapping[str, str]) -> str:
    """Return the compiler's flags. Raises ConfigError: they conflict with the precision, or with `inherited`."""
    if precision in ("bf16", "auto") and compiler.auto_cast != "none":
        raise ConfigError(
            f"compiler.auto_cast is {compiler.auto_cast!r}, but with train.precision {precision!r} the model says what "
            "is computed in bf16; set compiler.auto_cast=none, or train.precision=fp32 to leave it to the compiler"
        )
    flags = compiler_flags(compiler)
    _refuse_second_owner(inherited, flags)
    return flags


def compiler_flags(compiler: CompilerConfig) -> str:
    """Return the value of NEURON_CC_FLAGS; equal settings give equal text, as graph keys depend on it."""
    flags = [f"--target={compiler.target}", f"--model-type={compiler.model_type}"]
    if compiler.optlevel is not None:
        flags.append(f"-O{compiler.optlevel}")
    if compiler.target in ("trn1", "trn1n"):
        # Transposes inserted by the compiler multiply by zeros there, and infinity times zero is NaN.
        flags.append("--enable-saturate-infinity")
    flags.append(f"--auto-cast={compiler.auto_cast}")
    if compiler.auto_cast != "none":
        flags.append(f"--auto-cast-type={compiler.auto_cast_type}")
    return " ".join(flags)


def _refuse_second_owner(inherited: Mapping[str, str], flags: str) -> None:
    there = inherited.get(NEURON_FLAGS, "").strip()
    if there not in ("", flags):  # equal flags: set by our own parent process
        raise ConfigError(
            f"{NEURON_FLAGS} is set to {there!r} in the environment, while compiler.* of the configuration says "
            f"{flags!r}; unset it, and say what you need in compiler.optlevel, target, model_type, "
            "auto_cast, auto_cast_type"
        )
    for name in _DOWNCASTS:
        if inherited.get(name, "0") not in ("", "0"):
            raise ConfigError(f"{name} is set in the environment; unset it, and choose train.precision instead")


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
XLA_CACHE = "XLA_PERSISTENT_CACHE_PATH"
XLA_FLAGS = "XLA_FLAGS"
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
    inherited = os.environ.get(NEURON_CACHE) if is_collecting() else None  # set by the collecting process
    cache = Path(inherited) if inherited else folder_of_machine(rank)
    variables = {NEURON_CACHE: str(cache)}
    if config is not None:
        variables = neuron_environment(config, precision, cache, rank.world // rank.local_world)
    os.environ.update(variables)
    importlib.import_module("torch_neuronx")  # makes NeuronCores the device of torch-xla
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("neuronx-cc", "torch-neuronx")]
    rounding = variables.get("NEURON_RT_STOCHASTIC_ROUNDING_EN", "")
    return XlaEnvironment(True, cache, variables, ", ".join(versions), f"{variables.get(NEURON_FLAGS, '')} {rounding}")


def _processor(config: Config | None) -> XlaEnvironment:
    cache = own_folder()  # this runtime loads no graphs from disk, and new graphs are counted by file
    variables = {DEVICE: "CPU", XLA_CACHE: str(cache), "XLA_PERSISTENT_CACHE_READ_ONLY": "0"}
    if config is not None and config.compiler.optlevel is not None:
        variables[XLA_FLAGS] = _processor_flags(config.compiler)
    os.environ.update(variables)
    compiler = f"torch-xla {importlib.metadata.version('torch-xla')} for processors"
    return XlaEnvironment(False, cache, variables, compiler, os.environ.get(XLA_FLAGS, ""))


def _processor_flags(compiler: CompilerConfig) -> str:
    """Keep the user's flags, except the optimisation level, which the configuration sets."""
    kept = [flag for flag in os.environ.get(XLA_FLAGS, "").split() if not flag.startswith(LEVEL)]
    return " ".join([*kept, f"{LEVEL}={compiler.optlevel}"])
