from __future__ import annotations

from pathlib import Path

import pytest

from tasks.worker.process.job import Rank
from tests.neuron.graphs import LEVELS, write_graphs
from tests.support.processes.ranks import run_ranks


def read_back(_: Rank, files: list[Path]) -> list[str]:
    """The text of each graph, by XLA's own reader."""
    from torch_xla.core import xla_builder

    return [
        xla_builder.get_computation_hlo(xla_builder.computation_from_module_proto("graph", file.read_bytes()))
        for file in files
    ]


@pytest.mark.proof
@pytest.mark.shows("files for the compiler")
def test_the_graphs_are_files_that_xla_reads_and_that_have_no_doubles(tmp_path: Path):
    files = write_graphs(tmp_path)
    [texts] = run_ranks(1, read_back, files)
    assert any("reduce-scatter(" in text and "all-gather(" in text for text in texts), "the training step is among them"
    assert not any("f64[" in text for text in texts)
    assert len(set(texts)) == len(texts)
    for level in LEVELS:
        arguments = (tmp_path / f"arguments-O{level}").read_text().split()
        assert {"--target=trn1", f"-O{level}", "--enable-saturate-infinity"} <= set(arguments)
