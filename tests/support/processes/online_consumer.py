"""The code of docs/publish.md for consumers, as written but for its addresses and the target's name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from configs.schema.stages import AnyTarget

PAGE = (Path(__file__).resolve().parents[3] / "docs/publish.md").read_text()
_ADDRESS = re.compile(r'(connect|QdrantClient|OpenSearch)\((url=)?"([^"]+)"')
_ENCODER = "http://127.0.0.1:4280"


def code_below(title: str, block: int = 0) -> str:
    """Return a block of code below a title of the page; by default the first."""
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", part, re.S)[block]


NARROW = "Narrow vectors"
_NARROW_BLOCKS = {"lancedb": 1, "pgvector": 2}


def consumer(target: AnyTarget, encoder: str) -> dict[str, Any]:
    """Return the names that the page's code for a target defines, `embed` and `search` among them.

    For a target with a form and a width it is the code for narrow vectors.

    Args:
        encoder: address of `millrace serve --online`.
    """
    embedding, own = code_below("What consumers read"), code_below(target.kind)
    if target.form is not None:
        embedding = code_below(NARROW)
        if target.kind in _NARROW_BLOCKS:
            own = code_below(NARROW, _NARROW_BLOCKS[target.kind]).replace("_small", "")
            own, changed = re.subn(r"bit\(128\)", f"bit({target.width})", own)
            assert changed == (target.kind == "pgvector")
        else:
            own, changed = re.subn(r"embed\(text, version\)", f"embed(text, version, {target.width})", own)
            assert changed
    assert _ENCODER in embedding
    at = next(str(getattr(target, key)) for key in ("uri", "dsn", "url") if hasattr(target, key))
    call = "path=" if target.kind == "qdrant" else ""  # the local mode
    code, replaced = _ADDRESS.subn(lambda found: f"{found[1]}({call}{at!r}", own)
    assert replaced == 1
    names: dict[str, Any] = {}
    for each in (embedding.replace(_ENCODER, encoder), re.sub(r"\b(look|shop)\b(?! *=)", target.name, code)):
        exec(compile(each, "docs/publish.md", "exec"), names)
    return names
