"""The versions in the image of TorchNeuron, compared with each other and with other files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from configs.instances import instances
from infra.images.requirements import pins, requirements
from tasks.worker.devices.neuron import OLDEST, TARGETS
from tests.support.fakes.neuron import native

ROOT = Path(__file__).resolve().parents[3]
IMAGE = (ROOT / "infra/images/worker-torchneuron.Dockerfile").read_text(encoding="utf-8")
AMI = (ROOT / "infra/aws/ami.sh").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
# Of one SDK: its runtime and collectives, its tools, its compiler, its driver (AWS's list of its packages).
SDKS = {"2.33": ("2.35", "2.33", "2.28", "2.31")}


def version(pattern: str, text: str = IMAGE) -> str:
    (found,) = {*re.findall(pattern, text)}
    return str(found)


def test_its_packages_are_of_the_sdk_that_the_machines_need() -> None:
    sdk = version(r'image\.description=".*Neuron SDK (\d+\.\d+)\.\d+"')
    assert {row.sdk for row in instances().values() if row.accelerator == "neuron"} == {sdk}
    runtime, tools, compiler, driver = SDKS[sdk]
    assert version(r"aws-neuronx-(?:runtime-lib|collectives)=(\d+\.\d+)\.") == runtime
    assert version(r"aws-neuronx-tools=(\d+\.\d+)\.") == tools
    assert version(r"neuronx-cc==(\d+\.\d+)\.") == compiler
    page = (ROOT / "docs/aws.md").read_text(encoding="utf-8")
    assert version(r"/NEURON_DRIVER=(\d+\.\d+)\.\d+/' infra/aws/ami\.sh", page) == driver
    assert version(r"s/\^(NEURON_DRIVER=[\d.]+)/", page) in AMI, "the line that the command changes"


def test_its_torchneuron_is_the_one_that_the_worker_and_the_pages_name() -> None:
    release = version(r"torch-neuronx==([\d.]+)\.\*")
    assert native.VERSION.startswith(f"{release}.")
    family = tuple(int(part) for part in release.split(".")[:2])
    assert family >= OLDEST
    page = (ROOT / "docs/accelerators.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| Trn2, Trn3 |"))
    assert f"{family[0]}.{family[1]}" in row
    assert {target.capitalize() for target in TARGETS} == {*re.findall(r"Trn\d", row.split("|")[1])}


def test_its_python_is_one_of_the_projects() -> None:
    (python,) = {*re.findall(r"python(3\.\d+)", IMAGE)}
    assert SpecifierSet(tomllib.loads(PYPROJECT)["project"]["requires-python"]).contains(f"{python}.0")


def test_its_libfabric_is_of_the_release_whose_driver_the_machine_has() -> None:
    for name in ("EFA_INSTALLER", "EFA_SHA256"):
        assert version(rf"ARG {name}=(\S+)") == version(rf"^{name}=(\S+)".replace("^", "(?m)^"), AMI)


def test_its_torch_replaces_ours_and_all_bounds_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch of TorchNeuron's family stays, with what it needs; every other package keeps the version that is pinned."""
    family = version(r"torch-neuronx==(\d+\.\d+)\.")
    installed = {"torch_neuronx": native.VERSION, "torch": f"{family}.0", "neuronx_cc": "2.28.7631.0", "nki": "0.7.0"}
    for name, number in installed.items():
        about = tmp_path / f"{name}-{number}.dist-info"
        about.mkdir()
        needs = f"Requires-Dist: torch=={family}.0\n" if name == "torch_neuronx" else ""
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{needs}")
    monkeypatch.syspath_prepend(tmp_path)
    own = version(r"requirements\.py worker --own ([\w -]+?) ?\\\n").split()
    made = {
        canonicalize_name(name): number
        for name, number in (
            line.split("==") for line in pins((ROOT / "constraints.txt").read_text(encoding="utf-8"), own)
        )
    }
    assert made[canonicalize_name("torch")] == f"{family}.0"
    for line in requirements(PYPROJECT, ["worker"]):
        wanted = Requirement(line)
        assert wanted.specifier.contains(made[canonicalize_name(wanted.name)]), line
