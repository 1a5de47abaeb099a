"""The code that docs/publish.md gives to consumers, run against each kind of target and the online encoder."""

from __future__ import annotations

import contextlib
from typing import Any
from xml.etree import ElementTree

import numpy as np
from lancedb.embeddings import get_registry
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

from tasks.publish import publish_to_all
from tasks.runs import releases
from tasks.worker.export.targets import open_target
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Exported
from tests.support.fakes.fake_runner import small_config
from tests.support.processes.online_consumer import PAGE, code_below, consumer
from tests.support.processes.online_server import running
from tests.support.workspace.served import copy_of, in_use

QUERY = "want a red shoe 3 please"


def test_the_code_of_the_page_finds_items_by_the_right_model(served, place, tmp_path):
    store, config = copy_of(served, tmp_path), place.config()
    older, newer = (releases.read(store, number) for number in (2, 4))  # of two models; 4 is current
    with in_use(store):
        publish_to_all(store, config, older, only_current=False)
        with running(store) as server:
            for release in (older, newer):
                names = consumer(config.publish.targets[0], server.url)
                with contextlib.ExitStack() as opened:
                    for each in {"connection", "client", "encoder"} & set(names):
                        opened.enter_context(contextlib.closing(names[each]))
                    found = names["search"](QUERY, 3)
                assert len(found) == 3
                assert all(release.model.version in str(hit) for hit in found)
                if release is older:
                    publish_to_all(store, config, newer, only_current=False)


def test_a_consumer_without_a_server_gets_the_same_vectors(served, tmp_path):
    store = copy_of(served, tmp_path)
    version = releases.read(store, 2).model.version
    code = code_below("Without a server")
    assert '"workspace/models"' in code
    names: dict[str, Any] = {}
    exec(compile(code.replace('"workspace/models"', repr(str(store.path("models")))), "docs/publish.md", "exec"), names)
    with running(store, "--release", "2") as server:
        theirs: dict[str, Any] = {}
        exec(code_below("What consumers read").replace("http://127.0.0.1:4280", server.url), theirs)
        with contextlib.closing(theirs["encoder"]):
            assert np.dot(names["embed"](QUERY, version), theirs["embed"](QUERY, version)) > 0.9999


def test_lancedb_asks_the_encoder_for_the_vector_of_a_text(served, tmp_path, monkeypatch):
    store, folder = copy_of(served, tmp_path), str(tmp_path / "target")
    code = code_below("lancedb", 1)
    assert '"workspace/lancedb"' in code
    code = compile(code.replace('"workspace/lancedb"', repr(folder)), "docs/publish.md", "exec")
    with running(store) as server, in_use(store):
        setting = f"{{kind: lancedb, name: look, uri: {folder}, encoder: ENCODER}}"
        config = small_config(f"publish.targets=[{setting.replace('ENCODER', server.url + '/')}]")
        names = consumer(config.publish.targets[0], server.url)
        with contextlib.closing(names["encoder"]):
            for number in (2, 4):  # of two models; 4 is current
                release, found = releases.read(store, number), dict[str, Any]()
                publish_to_all(store, config, release, only_current=False)
                exec(code, found)
                assert {hit["model_version"] for hit in found["hits"]} == {release.model.version}
                nearest = [hit["item_id"] for hit in names["search"]("a red lamp")]
                assert [hit["item_id"] for hit in found["hits"]] == nearest
        with contextlib.closing(open_target(config.publish.targets[0])) as target:
            target.erase(found["now"]["table"], nearest[:1])  # it writes the table again, with its metadata
        exec(code, found)
        assert found["hits"][0]["item_id"] == nearest[1]
        without = small_config(f"publish.targets=[{setting.replace('ENCODER', 'null')}]")
        publish_to_all(store, without, releases.read(store, 2), only_current=False)  # to a table that has the address
        variables = code_below("lancedb", 2).replace('open("/run/secrets/encoder").read()', '"sesame"')
        monkeypatch.setattr(get_registry(), "_variables", {})
        exec(variables, {})
        function = found["database"].open_table(found["now"]["table"]).embedding_functions["vector"].function
        assert (function.base_url, function.api_key) == ("http://encoder.internal:4280/v1", "sesame")


def test_the_graph_and_the_tokenizer_that_vespa_opens_give_the_vectors_of_the_release(served):
    release = releases.read(served, 4)
    folder = served.path(release.model_prefix)
    component = ElementTree.fromstring(PAGE.partition("```xml\n")[2].partition("```")[0])
    found = {each.tag: each.get("path") or each.text or "" for each in component}
    tokens = Tokenizer.from_file(str(folder / found["tokenizer-model"])).encode(QUERY)
    given = {
        found["transformer-input-ids"]: np.array([tokens.ids]),
        found["transformer-attention-mask"]: np.array([tokens.attention_mask]),
    }
    session = InferenceSession(folder / found["transformer-model"])
    vector = np.asarray(session.run([found["transformer-output"]], given)[0])[0]
    assert vector @ Exported(folder / FOLDER / "onnx").embed([QUERY], "query")[0] > 0.9999
