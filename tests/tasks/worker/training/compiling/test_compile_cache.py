from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_config
from infra.store.base import Store
from infra.store.manifest import read_manifest
from tasks.contracts.references import CompileRef
from tasks.foundation.errors import CompileError
from tasks.worker.devices.base import Graph, GraphWatch
from tasks.worker.training import compile_cache
from tasks.worker.training.batches import BatchShape
from tasks.worker.training.compile_cache import NOTHING, fetch, ingredients, is_complete, key_of, publish, ref_to
from tests.support.workspace.stores import STORES

MADE_OF = {"compiler": "c 1.0", "flags": "-O1", "world": 1}
KEY = key_of(MADE_OF)
# One graph in a file of its name, one in a folder of files.
FILES = {"1111": b"one", "neuronxcc-2/MODULE_2/model.neff": b"two", "neuronxcc-2/MODULE_2/model.done": b""}
MET = [Graph("1111", "training step, 8 x 8 tokens", 1.5, 3), Graph("MODULE_2", "evaluation", 0.5, 3)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param](request)


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    folder = tmp_path / "compiled"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "model.log").write_text("of no graph")
    return folder


def below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_published_graphs_are_fetched(store: Store, compiled: Path, tmp_path: Path):
    assert fetch(store, KEY, None) == NOTHING
    assert not is_complete(store, KEY)
    published = publish(store, MADE_OF, NOTHING, MET, compiled, complete=True)
    ref = ref_to(KEY, published.graphs)
    assert ref == CompileRef(key=KEY, graphs=2, seconds=2.0)
    cached = fetch(store, KEY, tmp_path / "here")
    assert (cached.graphs, set(cached.files)) == (published.graphs, set(published.files))
    assert cached.complete
    assert is_complete(store, KEY)
    assert {name: (graph.where, graph.seconds) for name, graph in cached.graphs.items()} == {
        "1111": ("training step, 8 x 8 tokens", 1.5),
        "MODULE_2": ("evaluation", 0.5),
    }
    assert below(tmp_path / "here") == FILES
    assert read_manifest(store, ref.prefix).facts["made_of"] == MADE_OF


def test_a_builder_adds_to_an_unfinished_entry(store: Store, compiled: Path, tmp_path: Path):
    publish(store, MADE_OF, NOTHING, MET[:1], compiled, complete=False)
    before = fetch(store, KEY, None)
    assert (list(before.graphs), before.complete) == (["1111"], False)
    publish(store, MADE_OF, before, MET, compiled, complete=True)
    assert below_store(store) == {*FILES, "MANIFEST.json"}
    assert fetch(store, KEY, tmp_path / "here").complete


def below_store(store: Store) -> set[str]:
    return {key.removeprefix(f"compile/{KEY}/") for key in store.list(f"compile/{KEY}")}


@pytest.mark.parametrize(
    ("name", "lost"), [("1111", "1111"), ("neuronxcc-2/MODULE_2/model.neff", "MODULE_2")], ids=["file", "folder"]
)
def test_a_corrupt_graph_is_set_aside_and_the_others_are_used(
    store: Store, compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, lost: str
):
    publish(store, MADE_OF, NOTHING, MET, compiled, complete=True)
    store.write(f"compile/{KEY}/{name}", b"0ne")
    cached = fetch(store, KEY, tmp_path / "here")
    assert not cached.complete
    assert set(cached.graphs) == {"1111", "MODULE_2"} - {lost}
    assert not any(lost in path for path in below(tmp_path / "here"))
    assert f"{name} does not" in capsys.readouterr().out
    assert any(name in key for key in store.list("quarantine"))
    assert not is_complete(store, KEY), "so that warmup runs again"
    publish(store, MADE_OF, cached, MET, compiled, complete=True)
    assert fetch(store, KEY, None).complete, "and mends it"


def test_a_lost_graph_is_not_listed(store: Store, compiled: Path):
    publish(store, MADE_OF, NOTHING, MET, compiled, complete=True)
    store.delete(f"compile/{KEY}/1111")
    assert list(fetch(store, KEY, None).graphs) == ["MODULE_2"]


def test_an_unreadable_manifest_is_set_aside(store: Store, compiled: Path, capsys: pytest.CaptureFixture[str]):
    publish(store, MADE_OF, NOTHING, MET, compiled, complete=True)
    store.write(f"compile/{KEY}/MANIFEST.json", b"{")
    assert not is_complete(store, KEY)
    assert fetch(store, KEY, None) == NOTHING
    assert "valid manifest" in capsys.readouterr().out


def test_the_key_depends_on_its_ingredients_and_not_their_order():
    assert key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})
    assert key_of(MADE_OF) != key_of({**MADE_OF, "world": 2})
    assert len(KEY) == 16


def test_the_size_of_gradient_buckets_is_an_ingredient():
    """It is part of the graph of the update."""
    shape = SimpleNamespace(model_dump=lambda mode: {})
    encoder = SimpleNamespace(to_diff_dict=dict)
    parts: Any = SimpleNamespace(encoder_config=encoder, model=SimpleNamespace(shape=shape))
    device: Any = SimpleNamespace(compiler="", flags="", choose_precision=lambda requested: requested)
    configs = (load_config(overrides=[f"compiler.gradient_bucket_mib={mib}"]) for mib in (50, 512))
    keys = {key_of(ingredients(config, parts, BatchShape(8, 8, 16), 2, device)) for config in configs}
    assert len(keys) == 2


class Device:
    """The part of an accelerator that `expect` uses."""

    name = "xla"
    reads_graphs = True

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.graph_folder = folder
        self.graphs: GraphWatch | None = GraphWatch(lambda: (0, 0.0), dict)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda store: store.delete(f"compile/{KEY}/1111"), "has 1 sound graphs of the 2 that warmup made"),
        (lambda store: store.delete(f"compile/{KEY}"), "has 0 sound graphs of the 2"),
    ],
)
def test_lost_graphs_stop_the_training_unless_new_ones_are_allowed(
    store: Store, compiled: Path, tmp_path: Path, damage: Callable[[Store], None], complaint: str
):
    ref = ref_to(KEY, publish(store, MADE_OF, NOTHING, MET, compiled, complete=True).graphs)
    compile_cache.expect(Device(tmp_path / "sound"), store, ref, "fail")  # type: ignore[arg-type]
    assert below(tmp_path / "sound").items() >= FILES.items()
    damage(store)
    with pytest.raises(CompileError, match=complaint):
        compile_cache.expect(Device(tmp_path / "here"), store, ref, "fail")  # type: ignore[arg-type]
    compile_cache.expect(Device(tmp_path / "there"), store, ref, "warn")  # type: ignore[arg-type]


def test_without_warmup_only_an_eager_device_may_train(store: Store, tmp_path: Path):
    with pytest.raises(CompileError, match="run warmup first"):
        compile_cache.expect(Device(tmp_path), store, None, "warn")  # type: ignore[arg-type]
    device = Device(tmp_path)
    device.graphs = None  # eager
    compile_cache.expect(device, store, None, "fail")  # type: ignore[arg-type]
