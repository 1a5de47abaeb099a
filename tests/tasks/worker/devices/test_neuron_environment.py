from pathlib import Path

import pytest

from configs.load import BASE, load_config
from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.devices.xla_environment import compiler_flags, neuron_environment

CACHE = Path("/var/tmp/graphs")
CC_FLAGS = "--target=trn1 --model-type=transformer"
ALWAYS = {
    "NEURON_CC_FLAGS": "--target=trn1 --model-type=transformer -O1 --enable-saturate-infinity --auto-cast=none",
    "NEURON_COMPILE_CACHE_URL": "/var/tmp/graphs",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": "0",
    "NEURON_RT_EXEC_TIMEOUT": "600",
    "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB": "50",
    "XLA_USE_32BIT_LONG": "1",
}
ROUNDED = {"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1", "NEURON_RT_STOCHASTIC_ROUNDING_SEED": "0"}
EFA = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
    "CCOM_SOCKET_IFNAME": "eth0",
    "XLA_TRANSFER_SEED_ASYNC": "1",
}


def config(*overrides: str) -> Config:
    return load_config(overrides=[f"compiler.{override}" for override in overrides])


@pytest.mark.parametrize(
    ("overrides", "precision", "nodes", "expected"),
    [
        ([], "fp32", 1, ALWAYS),
        ([], "bf16", 1, ALWAYS),
        ([], "bf16-weights", 1, ALWAYS | ROUNDED),
        (["rounding_seed=7"], "bf16-weights", 1, ALWAYS | ROUNDED | {"NEURON_RT_STOCHASTIC_ROUNDING_SEED": "7"}),
        (["rounding_seed=7"], "fp32", 1, ALWAYS),
        ([], "fp32", 2, ALWAYS | EFA),
        (["efa=true"], "fp32", 1, ALWAYS | EFA),
        (
            ["exec_timeout_seconds=90", "gradient_bucket_mib=512"],
            "fp32",
            1,
            ALWAYS | {"NEURON_RT_EXEC_TIMEOUT": "90", "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB": "512"},
        ),
    ],
)
def test_the_variables_follow_from_the_configuration(overrides, precision, nodes, expected):
    assert neuron_environment(config(*overrides), precision, CACHE, nodes, inherited={}) == expected


@pytest.mark.parametrize(
    ("overrides", "flags"),
    [
        (["optlevel=3"], "--target=trn1 --model-type=transformer -O3 --enable-saturate-infinity --auto-cast=none"),
        (["optlevel=null"], "--target=trn1 --model-type=transformer --enable-saturate-infinity --auto-cast=none"),
        (["target=trn2", "model_type=generic"], "--target=trn2 --model-type=generic -O1 --auto-cast=none"),
        (
            ["auto_cast=matmult", "auto_cast_type=tf32"],
            f"{CC_FLAGS} -O1 --enable-saturate-infinity --auto-cast=matmult --auto-cast-type=tf32",
        ),
        (
            ["auto_cast_type=fp16"],
            "--target=trn1 --model-type=transformer -O1 --enable-saturate-infinity --auto-cast=none",
        ),
    ],
)
def test_the_compiler_flags_follow_from_the_configuration(overrides, flags):
    assert compiler_flags(config(*overrides).compiler) == flags


# The whole environment of each stage's workers, which is what the presets are for.


@pytest.mark.shows("variables")
@pytest.mark.parametrize(
    ("preset", "stage", "expected"),
    [
        ("trainium", "train", {"NEURON_CC_FLAGS": f"{CC_FLAGS} -O2 --enable-saturate-infinity --auto-cast=none"}),
        (
            "trainium-m5",
            "train",
            {"NEURON_CC_FLAGS": f"{CC_FLAGS} -O1 --enable-saturate-infinity --auto-cast=all --auto-cast-type=bf16"},
        ),
        (
            "trainium-m5",
            "infer",
            {"NEURON_CC_FLAGS": f"{CC_FLAGS} -O1 --enable-saturate-infinity --auto-cast=all --auto-cast-type=bf16"},
        ),
        (
            "trainium-stochastic",
            "train",
            {"NEURON_CC_FLAGS": f"{CC_FLAGS} -O2 --enable-saturate-infinity --auto-cast=none"} | ROUNDED,
        ),
        (
            "trainium-stochastic",
            "infer",
            {"NEURON_CC_FLAGS": f"{CC_FLAGS} -O2 --enable-saturate-infinity --auto-cast=none"},
        ),
    ],
)
def test_a_preset_sets_its_variables_and_no_other(preset, stage, expected):
    settings = load_config(BASE.with_name(f"{preset}.yaml"))
    precision = {"train": settings.train.precision, "infer": settings.infer.precision}[stage]
    assert neuron_environment(settings, precision, CACHE, inherited={}) == ALWAYS | expected


def test_the_cache_is_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables = neuron_environment(config(), "fp32", Path("graphs"), inherited={})
    assert variables["NEURON_COMPILE_CACHE_URL"] == str(tmp_path / "graphs")


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_casting_twice_is_refused(precision):
    with pytest.raises(ConfigError, match=r"'all', .*train.precision"):
        neuron_environment(config("auto_cast=all"), precision, CACHE, inherited={})


@pytest.mark.parametrize("precision", ["fp32", "bf16-weights"])
def test_the_compiler_may_cast_without_autocast(precision):
    flags = neuron_environment(config("auto_cast=all"), precision, CACHE, inherited={})["NEURON_CC_FLAGS"]
    assert flags.endswith("--auto-cast=all --auto-cast-type=bf16")


def test_flags_set_by_the_user_are_refused(monkeypatch):
    monkeypatch.setenv("NEURON_CC_FLAGS", "--optlevel=2")
    with pytest.raises(ConfigError, match=r"'--optlevel=2' .*\.optlevel"):
        neuron_environment(config(), "fp32", CACHE)


@pytest.mark.parametrize("flags", ["", "  ", ALWAYS["NEURON_CC_FLAGS"]])
def test_empty_or_equal_flags_are_accepted(flags):
    assert neuron_environment(config(), "fp32", CACHE, inherited={"NEURON_CC_FLAGS": flags}) == ALWAYS


@pytest.mark.parametrize("name", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_a_switch_that_makes_everything_bf16_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} .*train.precision"):
        neuron_environment(config(), "fp32", CACHE, inherited={name: "1"})
    assert neuron_environment(config(), "fp32", CACHE, inherited={name: "0"}) == ALWAYS
