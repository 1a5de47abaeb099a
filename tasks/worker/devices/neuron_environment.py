"""The environment variables of a run on NeuronCores, all made here from the typed configuration.

They are set before the runtime starts, and recorded with the run.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from configs.schema.compute import CompilerConfig
from configs.schema.config import Config
from tasks.foundation.errors import ConfigError

FLAGS = "NEURON_CC_FLAGS"
CACHE = "NEURON_COMPILE_CACHE_URL"
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
    if precision in ("bf16", "auto") and compiler.auto_cast != "none":
        raise ConfigError(
            f"compiler.auto_cast is {compiler.auto_cast!r}, but with train.precision {precision!r} the model says what "
            "is computed in bf16; set compiler.auto_cast=none, or train.precision=fp32 to leave it to the compiler"
        )
    flags = compiler_flags(compiler)
    _refuse_second_owner(inherited, flags)
    rounding = precision == "bf16-weights"
    variables = {
        FLAGS: flags,
        CACHE: str(cache.absolute()),
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
    there = inherited.get(FLAGS, "").strip()
    if there not in ("", flags):  # equal flags: set by our own parent process
        raise ConfigError(
            f"{FLAGS} is set to {there!r} in the environment, while compiler.* of the configuration says {flags!r}; "
            f"unset it, and say what you need in compiler.optlevel, target, model_type, auto_cast, auto_cast_type"
        )
    for name in _DOWNCASTS:
        if inherited.get(name, "0") not in ("", "0"):
            raise ConfigError(f"{name} is set in the environment; unset it, and choose train.precision instead")
