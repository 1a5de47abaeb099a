"""What pip installs into an image: our pins, except for packages of the base image."""

from importlib import metadata
from pathlib import Path

import pytest

from infra.images.requirements import pins, requirements

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_control_plane_needs_no_torch() -> None:
    wanted = requirements(PYPROJECT, [])
    assert any(line.startswith("prefect") for line in wanted)
    assert not any("torch" in line or "transformers" in line for line in wanted)


def test_an_extra_adds_to_the_common_requirements() -> None:
    assert set(requirements(PYPROJECT, [])) < set(requirements(PYPROJECT, ["worker"]))
    assert any(line.startswith("torch") for line in requirements(PYPROJECT, ["worker"]))


def test_an_unknown_extra_is_an_error() -> None:
    with pytest.raises(KeyError, match="wroker"):
        requirements(PYPROJECT, ["wroker"])


def test_without_a_base_image_the_pins_are_ours() -> None:
    text = "# of the project\ntorch==2.9.1  # the last one\n\nnumpy==2.4.6\n"
    assert pins(text, []) == ["torch==2.9.1", "numpy==2.4.6"]


def test_a_package_of_the_base_image_stays_with_its_dependencies() -> None:
    """pydantic is used in place of torch: it needs pydantic-core, also written with an underscore."""
    text = "pydantic==1.0\npydantic_core==1.0\ntyping_extensions==1.0\nboto3==1.0\n"
    kept = pins(text, ["Pydantic"])
    assert kept[0] == "boto3==1.0"
    assert f"pydantic=={metadata.version('pydantic')}" in kept
    assert f"pydantic-core=={metadata.version('pydantic-core')}" in kept
    assert f"typing-extensions=={metadata.version('typing-extensions')}" in kept
    assert not any(line.endswith("==1.0") for line in kept[1:])


def test_a_missing_package_of_the_base_image_is_an_error() -> None:
    with pytest.raises(metadata.PackageNotFoundError, match="torch-neuronx"):
        pins("torch==2.9.1\n", ["torch-neuronx"])
