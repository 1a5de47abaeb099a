"""Files of users, damaged at random: a right answer, or an error with a class that names the file, in bounds.

`make fuzz` draws other examples at each call, and many more. Records of the workspace: tests/flows/cli/test_damaged.py.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from configs.load import load_config
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import Canonicaliser
from tasks.data.files.formats import Format
from tasks.data.files.sources import SourceReader
from tasks.data.pretrained import describe
from tasks.foundation.errors import StageError
from tasks.worker.laboratory.import_checkpoint import read_weights
from tests.support.processes.bounds import bounded
from tests.support.workspace.inputs import encoded

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
FUZZ = settings(
    max_examples=int(EXAMPLES or 12),
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
ROW: dict[str, Any] = {"at": "2021-01-01", "query": "lamp", "item": "a lamp", "more": {"a": [1, None, 2.5]}}


class Case(NamedTuple):
    """A sound file, what reads it, what is put into it where it is damaged, and its name."""

    sound: bytes
    read: Callable[[Path], object]
    hostile: tuple[bytes, ...]
    name: str = "file"


def read_rows(form: Format) -> Callable[[Path], object]:
    def read(path: Path) -> None:
        canonical = Canonicaliser(form, "at", SpanKind.month, {"query": "query", "item": "item"})
        for record in SourceReader(path, form):
            canonical.convert(record).to_line(record)

    return read


def read_pretrained(damaged: str) -> Callable[[Path], object]:
    """Return what reads a pretrained folder, of which one file is there already and the others are sound."""

    def read(path: Path) -> None:
        folder = path.parents[damaged.count("/")]
        for name, content in PRETRAINED.items():
            if name != damaged:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)
        describe(folder)

    return read


def bytes_of(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


JSON = (b"null", b"[]", b"{}", b'"\\ud800"', b"1e999", b"-1", b"9" * 30, b"[" * 2000, b'"a":', b"\xff", b"NaN")
YAML = (b"&a ", b"*a", b"<<: ", b"? ", b"!!timestamp ", b"- ", b"{", b"[", b"null", b"0x", b": ", b"\n", b"'", b"\0")
NUMBERS = (b"\xff" * 4, b"\x00" * 8, b"\x7f\xff\xff\xff", b"\xff" * 8, b"\x8a\x08" + b"\xff" * 8)
SETTINGS = b"seed: 1\ntrain: {epochs: 2}\nevaluate:\n  slices: [locale]\nvalidate:\n  suites: []\n"
LINE = json.dumps(ROW).encode() + b"\n"
CSV = b'at,query,item\n2021-01-01,lamp,"a ""lamp"""\n2021-01-02,cup,"a\ncup"\n'
WEIGHTS = {"a": torch.zeros(3, 2), "b": torch.ones(4, dtype=torch.float16)}
PARQUET = bytes_of(lambda file: pq.write_table(pa.Table.from_pylist([ROW] * 3), file))
MODULES = [
    {"path": "" if number == 0 else f"{number}_{name}", "type": f"sentence_transformers.models.{name}"}
    for number, name in enumerate(("Transformer", "Pooling", "Dense", "Normalize"))
]
DENSE = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh", "bias": True}
PRETRAINED = {
    "modules.json": json.dumps(MODULES).encode(),
    "sentence_bert_config.json": b'{"max_seq_length": 77, "do_lower_case": false}',
    "config_sentence_transformers.json": b'{"prompts": {"query": "q: "}, "default_prompt_name": null}',
    "1_Pooling/config.json": b'{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}',
    "2_Dense/config.json": json.dumps(DENSE).encode(),
    "2_Dense/model.safetensors": b"",  # only looked for
}

CASES = {
    "configuration": Case(SETTINGS, load_config, YAML),
    "jsonl": Case(LINE * 3, read_rows(Format.jsonl), JSON),
    "jsonl, gzip": Case(gzip.compress(LINE * 3), read_rows(Format.jsonl), NUMBERS),
    "csv": Case(CSV, read_rows(Format.csv), (b'"', b",", b"\n", b"\r", b"\0", b";", b"\xff", b"\xef\xbb\xbf")),
    "parquet": Case(PARQUET, read_rows(Format.parquet), NUMBERS),
    "xml": Case(
        encoded([ROW] * 3, Format.xml),
        read_rows(Format.xml),
        (b"<", b">", b"&", b"]]>", b"<!--", b"<?", b"</item>", b"\0"),
    ),
    "safetensors": Case(save(WEIGHTS), read_weights, (*JSON, *NUMBERS)),
    "torch": Case(bytes_of(lambda file: torch.save(WEIGHTS, file)), read_weights, NUMBERS),
    **{
        name: Case(content, read_pretrained(name), JSON, name)
        for name, content in PRETRAINED.items()
        if name.endswith(".json")
    },
}


def damaged(case: Case, draw: st.DataObject) -> bytes:
    content = case.sound
    for _ in range(draw.draw(st.integers(1, 4))):
        start = draw.draw(st.integers(0, len(content)))
        gone = draw.draw(st.sampled_from((0, 1, 8, 10**6)))
        put = draw.draw(st.one_of(st.sampled_from(case.hostile), st.binary(max_size=4)))
        content = content[:start] + put + content[start + gone :]
    return content


@pytest.mark.parametrize("kind", CASES)
@FUZZ
@given(draw=st.data())
def test_a_damaged_file_is_read_or_named(tmp_path: Path, kind: str, draw: st.DataObject) -> None:
    path = tmp_path / CASES[kind].name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(damaged(CASES[kind], draw))
    said = str(path)
    try:
        with bounded():
            CASES[kind].read(path)
    except StageError as error:
        said = str(error)
    named = tmp_path if kind in PRETRAINED else path  # a damaged list of modules leads to a file that is not there
    assert str(named) in said or said.startswith("configuration: ")  # which is merged from several files


def test_every_format_of_sources_is_damaged() -> None:
    assert {form.value for form in Format} <= CASES.keys()
