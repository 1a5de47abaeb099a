from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flows.laboratory.parity_page import draw
from infra.store.directory import DirectoryStore
from tasks.laboratory.parity_report import ParityReport, compare
from tests.support.workspace.trainings import CURVE, LOSSES, Curve, changed, side

SVG = "{http://www.w3.org/2000/svg}"


def drawn(right: Curve = CURVE, losses: Curve = LOSSES) -> tuple[ParityReport, ElementTree.Element]:
    """A report and its picture. The letters are drawn as outlines; each text is also there as a comment."""
    report = compare(DirectoryStore(Path("/nowhere")), "main", side("cpu", losses=losses), side("xla", right, losses))
    return report, parsed(draw(report))


def parsed(svg: bytes) -> ElementTree.Element:
    return ElementTree.fromstring(svg, ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True)))


def texts(svg: ElementTree.Element) -> set[str]:
    return {str(node.text).strip() for node in svg.iter() if node.tag is ElementTree.Comment}


def panels(svg: ElementTree.Element) -> int:
    return sum(str(group.get("id")).startswith("axes_") for group in svg.iter(f"{SVG}g"))


def test_each_metric_the_loss_and_the_difference_have_a_panel():
    _, svg = drawn()
    assert panels(svg) == 4
    assert {"recall@10", "auc", "training loss", "step", "cpu, fp32", "xla, fp32"} <= texts(svg)
    assert {"relative difference (margin: 0.1 %)", "the largest of 2 holdout metrics"} <= texts(svg)
    assert {"equal", "0.000001 %", "0.1 %", "1 %"} <= texts(svg)


def test_without_losses_there_is_no_loss_panel():
    _, svg = drawn(losses={})
    assert panels(svg) == 3
    assert "training loss" not in texts(svg)


def test_the_picture_is_800_pixels_wide_and_white_and_shows_the_verdict():
    report, svg = drawn()
    assert float(str(svg.get("width")).removesuffix("pt")) * 4 / 3 == pytest.approx(800, abs=1)
    assert svg.find(f".//{SVG}g[@id='patch_1']/{SVG}path[@style='fill: #ffffff']") is not None
    assert any(node.text == report.sentence for node in svg.iter())


def test_the_same_report_gives_the_same_bytes_on_any_day():
    report, svg = drawn()
    assert draw(report) == draw(report)
    assert [node for node in svg.iter() if str(node.tag).endswith("}date")] == []


@pytest.mark.parametrize("value", [0.1, 0.0, math.nan, 0.75 * (1 + 1e-12)])
def test_any_difference_can_be_drawn(value: float):
    _, svg = drawn(changed(CURVE, 40, "auc", value))
    assert panels(svg) == 4


@pytest.mark.parametrize("metrics", [1, 4, 5, 9])
def test_any_number_of_metrics_fits(metrics: int):
    curve = {step: {f"metric {number}": 0.1 * number + step for number in range(metrics)} for step in (0, 7)}
    assert (
        panels(parsed(draw(compare(DirectoryStore(Path("/nowhere")), "main", side("cpu", curve), side("xla", curve)))))
        == metrics + 2
    )


def test_a_single_evaluation_can_be_drawn():
    curve = {0: CURVE[0]}
    assert (
        panels(
            parsed(
                draw(compare(DirectoryStore(Path("/nowhere")), "main", side("cpu", curve, {}), side("xla", curve, {})))
            )
        )
        == 3
    )
