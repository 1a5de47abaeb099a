"""The graphs that NeuronCores would get, read without running them: what differs by worker, or can't run there, shows.

After a change on purpose, write what is golden with `pytest tests/tasks/worker/devices --write-golden`.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.processes.paper import Graph, Place, draw
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import make_workspace

GOLDEN = Path(__file__).resolve().parents[3] / "golden/neuron_graphs.json"
FEW = [Place(32, 0), Place(32, 31)]
ALL = [Place(world, ordinal) for world in (32, 64, 512) for ordinal in (0, 1, 31, 32) if ordinal < world]
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(")

Drawn = dict[Place, list[Graph]]


def drawn(folder: Path, places: list[Place]) -> Drawn:
    store, rows = make_workspace(folder)
    [found] = run_ranks(1, draw, store.root, rows, places)
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """With workers who gather in another way, as is planted."""
    return drawn(tmp_path_factory.mktemp("paper"), [*FEW, *(place._replace(planted=True) for place in FEW)])


@pytest.fixture(scope="module")
def few(both: Drawn) -> Drawn:
    return {place: graphs for place, graphs in both.items() if not place.planted}


def texts(found: Drawn) -> dict[str, None]:
    return {graph.text: None for graphs in found.values() for graph in graphs}


def collectives(text: str) -> Counter[str]:
    """Kind and types of each collective."""
    return Counter(f"{kind} {','.join(sorted(set(re.findall(r'[a-z]+[0-9]+', types))))}"
                   for types, kind in COLLECTIVE.findall(re.sub(r"/\*.*?\*/|\{[0-9,]*\}", "", text)))  # fmt: skip


def different(found: Drawn) -> set[str]:
    """The work whose graphs are not the same on all workers of a world."""
    works = set()
    for world in {place.world for place in found}:
        each = [set(graphs) for place, graphs in found.items() if place.world == world]
        works |= {graph.where for graph in set.union(*each) - set.intersection(*each)}
    return works


@pytest.mark.shows("same graphs")
def test_all_workers_get_the_same_graphs(few: Drawn):
    assert different(few) == set()
    assert {graph.where.split(",")[0] for graph in few[FEW[0]]} == {
        "first all-reduce", "start", "training step", "evaluation", "health"
    }  # fmt: skip


@pytest.mark.shows("collectives of a step")
def test_collectives_are_those_asked_for_and_of_no_integers(few: Drawn):
    assert {kind.split()[1] for text in texts(few) for kind in collectives(text)} == {"f32"}
    counted = {graph.where.split(",")[0]: Counter[str]() for graph in few[FEW[0]]}
    for graph in few[FEW[0]]:
        counted[graph.where.split(",")[0]] += collectives(graph.text)
    assert counted["training step"] == {"all-gather f32": 1, "reduce-scatter f32": 1, "all-reduce f32": 1}
    assert counted["evaluation"] == {}
    timed = [collectives(graph.text) for graph in few[FEW[0]] if graph.where == "health, timed"]
    assert timed == [{"all-reduce f32": 1}] * 2 + [{"all-gather f32": 1}, {"reduce-scatter f32": 1}]


@pytest.mark.shows("collectives of a step")
def test_no_collective_pins_the_layout_of_its_numbers(few: Drawn):
    """As torch-xla does by default, and its users on Trainium never; a gather is then another collective."""
    assert not [text for text in texts(few) if "constrain_layout" in text]


@pytest.mark.shows("clean graphs")
def test_nothing_is_in_64_bits(few: Drawn):
    """But for the code's own numbers, which torch-xla sends as doubles, and on NeuronCores as floats."""
    for text in texts(few):
        assert not re.search(r"\b[su]64\[", text)
        doubles = re.findall(r"= f64(\[[0-9,]*\])\S* ([a-z-]+)\(", text)
        assert {kind for _, kind in doubles} <= {"parameter", "constant", "convert", "broadcast"}
        assert {shape for shape, kind in doubles if kind == "parameter"} <= {"[]"}


@pytest.mark.shows("clean graphs")
def test_an_infinity_is_only_where_the_search_for_a_maximum_begins(few: Drawn):
    assert not [graph.where for graph in few[FEW[0]] if graph.infinite]
    for text in texts(few):
        for name in re.findall(r"(%\S+) = \S+ constant\(-?inf\)", text):
            uses = [line for line in text.splitlines() if re.search(rf"{re.escape(name)}\b(?! =)", line)]
            assert all(" reduce(" in line for line in uses), uses
        assert "nan" not in text


def test_the_encoder_computes_in_bf16_where_it_should(few: Drawn):
    """In the training step and the evaluation in its loop; infer.precision is fp32 here."""
    products = {graph: Counter(re.findall(r"= (bf16|f32)\[\S* dot\(", graph.text)) for graph in few[FEW[0]]}
    [step] = [count for graph, count in products.items() if "all-gather" in graph.text and "training" in graph.where]
    assert step["bf16"] > step["f32"] > 0
    evaluations = [count for graph, count in products.items() if graph.where == "evaluation"]
    assert any(count["bf16"] for count in evaluations)
    assert any(count["f32"] and not count["bf16"] for count in evaluations)


@pytest.mark.shows("clean graphs")
def test_there_are_no_calls_of_other_code(few: Drawn):
    assert not [text for text in texts(few) if "custom-call" in text]


def test_number_and_size_of_the_graphs_are_the_golden_ones(few: Drawn, write_golden: bool):
    found = [
        {"where": graph.where, "operations": graph.text.count(" = "), "collectives": dict(collectives(graph.text))}
        for graph in few[FEW[0]]
    ]
    if write_golden:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        pytest.skip(f"wrote {GOLDEN.name}: look at the difference before committing it")
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.shows("same graphs")
def test_a_gather_that_is_padded_by_the_workers_number_is_caught(both: Drawn):
    planted = {place: graphs for place, graphs in both.items() if place.planted}
    assert any(work.startswith("training step") for work in different(planted))


@pytest.mark.shows("same graphs")
@pytest.mark.proof
def test_all_workers_get_the_same_graphs_on_1_2_and_16_machines(tmp_path: Path):
    found = drawn(tmp_path, ALL)
    assert different(found) == set()
    for place, graphs in found.items():
        groups = {"", *re.findall(r"replica_groups=\{(.*?)\}", "\n".join(graph.text for graph in graphs))}
        assert groups == {""}, f"all {place.world} workers together"
