import math
import threading
import xml.etree.ElementTree as ElementTree

from flows.pages.figures import MOST_POINTS, by_name, draw, thinned

CURVES = {
    "loss": [(step, 2 * math.exp(-step / 300)) for step in range(0, 1500, 5)],
    "accuracy": [(step, 0.5) for step in (0, 700, 1500)],
}


def test_the_same_numbers_give_the_same_bytes_also_to_several_at_once():
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(draw(CURVES))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {draw(CURVES)}
    assert draw({"loss": CURVES["loss"]}) not in found


def test_a_picture_is_small_and_needs_nothing_from_elsewhere():
    svg = draw(CURVES)
    picture = ElementTree.fromstring(svg)
    assert (picture.attrib["width"], picture.attrib["height"]) == ("300pt", "165pt")  # 400 x 220 CSS pixels
    assert len(svg) < 60_000
    links = [value for part in picture.iter() for name, value in part.attrib.items() if name.endswith("href")]
    assert links
    assert all(link.startswith("#") for link in links)


def test_a_value_that_is_no_number_is_a_gap():
    svg = draw({"loss": [(0, 1.0), (1, math.nan), (2, math.inf), (3, 0.5), (4, 0.4)]})
    ElementTree.fromstring(svg)
    assert b"nan" not in svg
    assert draw({"loss": [(0, math.nan)]})


def test_long_curves_are_thinned_and_keep_their_ends():
    long = list(range(10_001))
    found = thinned(long, MOST_POINTS)
    assert len(found) == MOST_POINTS
    assert (found[0], found[-1]) == (0, 10_000)
    assert len(set(found)) == MOST_POINTS
    assert thinned([1, 2, 3], MOST_POINTS) == [1, 2, 3]


def test_curves_are_put_together_by_name_whatever_each_step_has():
    assert by_name([(0, {"a": 1.0}), (5, {"a": 2.0, "b": 3.0})]) == {"a": [(0, 1.0), (5, 2.0)], "b": [(5, 3.0)]}
