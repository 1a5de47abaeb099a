"""The code that docs/publish.md gives to consumers, run against each kind of target."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np

from tasks.worker import publish
from tests.support.workspace.publications import publish_job
from tests.support.workspace.releases import write_release
from tests.tasks.worker.export.reading import vector_of

PAGE = (Path(__file__).resolve().parents[4] / "docs/publish.md").read_text()
ADDRESS = re.compile(r'(connect|QdrantClient|OpenSearch)\((url=)?"([^"]+)"')


class Model:
    """Embeds a text that is an item's id as that item's vector."""

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self._vectors = vectors

    def encode_query(self, text: str) -> np.ndarray:
        return self._vectors[text]


def test_the_code_of_the_page_finds_items_by_the_right_model(store, place):
    releases = [write_release(store, number) for number in (1, 2)]
    models = {each.model.version: Model({"i0007": vector_of(store, each, "i0007")}) for each in releases}
    target = place.config().publish.targets[0]
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.partition(f"## {target.kind}\n")[2].partition("\n## ")[0], re.S)
    at = next(str(getattr(target, key)) for key in ("uri", "dsn", "url") if hasattr(target, key))
    call = "path=" if target.kind == "qdrant" else ""  # the local mode
    code, replaced = ADDRESS.subn(lambda found: f"{found[1]}({call}{at!r}", code)
    assert replaced == 1
    for release in releases:
        publish.run(publish_job(store, place.config(), release, only_current=False))
        names: dict[str, Any] = {"model": models.__getitem__}
        exec(compile(code, "docs/publish.md", "exec"), names)
        with contextlib.ExitStack() as opened:
            for each in {"connection", "client"} & set(names):
                opened.enter_context(contextlib.closing(names[each]))
            found = names["search"]("i0007", 3)
        assert len(found) == 3
        assert "'i0007'" in str(found[0])
        assert release.model.version in str(found[0])
