"""The code that docs/publish.md gives to consumers, run against each kind of target and the online encoder."""

from __future__ import annotations

import contextlib
from typing import Any
from xml.etree import ElementTree

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

from tasks.publish import publish_to_all
from tasks.runs import releases
from tasks.worker.online.exported import FOLDER, Exported
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
