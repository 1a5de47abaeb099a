"""The state of the stack in docs/accelerators.md names the versions of the images, and what the template starts."""

import re
from pathlib import Path
from typing import get_args

import pytest

from configs.instances import instances
from configs.schema.compute import AcceleratorName
from tests.support.cloud.template import template

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def table() -> dict[str, list[str]]:
    """The cells of each row, by chip."""
    page = (
        (ROOT / "docs/accelerators.md")
        .read_text(encoding="utf-8")
        .partition("## State of the stack")[2]
        .partition("**Decide")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {chip: cells for chip, *cells in rows[2:]}


def test_the_pinned_versions_are_those_of_the_image(table: dict[str, list[str]]) -> None:
    image = re.search(
        r"^FROM \S+:(\d+\.\d+)\.\d+-\S+sdk([\d.]+)-",
        (ROOT / "infra/images/worker-neuron.Dockerfile").read_text(encoding="utf-8"),
        re.M,
    )
    assert image is not None
    assert f"torch-neuronx {image[1]}, Neuron SDK {image[2]}" in table["Trn1"][0]
    assert f"torch-xla=={image[1]}." in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_each_chip_is_there_as_the_page_says(table: dict[str, list[str]]) -> None:
    named = {word for cells in table.values() for word in re.findall(r"`accelerator: (\w+)`", cells[-1])}
    assert named == {*get_args(AcceleratorName)} - {"cpu"}
    parameters = template()["Parameters"]
    started = parameters["AcceleratorType"]["AllowedValues"]
    for machine in started:  # the chip's row names the SDK that the type's row needs
        (cells,) = (cells for chips, cells in table.items() if machine[:4].capitalize() in chips)
        assert f"SDK {instances()[machine].sdk}" in cells[0], machine
    assert "GpuType" in parameters
    assert "GpuType" in table["NVIDIA GPUs"][-1]
