"""`millrace import-checkpoint`: the list of tensors, the next command, and a try again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.prefect_server import Server
from infra.store.directory import DirectoryStore
from tests.support.fakes.commands import run_command, run_pipeline
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.command import Command


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A workspace with spans and no lineage, and a file of weights next to it."""
    ingest(DirectoryStore(tmp_path / "shop"), "2026-01", "2026-02")
    (tmp_path / "weights.pt").write_bytes(b"weights")
    return tmp_path / "shop"


def test_an_import_lists_the_tensors_and_names_the_next_command(server: Server, millrace: Command, shop: Path) -> None:
    arguments = ("import-checkpoint", str(shop.parent / "weights.pt"), "--span", "2026-02")
    result = run_command(server, shop, *arguments)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert " 101 tensors " in lines[0]
    assert lines[0].endswith("/weights.pt: lineages/main/step-00000000")
    assert any(
        line.startswith("LEFT OUT") and line.endswith("embeddings.position_ids, qa_outputs.weight") for line in lines
    )
    assert any(line.startswith("new") and line.endswith("(1): projection.weight") for line in lines)
    assert lines[-1].startswith(f"next: millrace run --span 2026-02 --workspace {shop} ")
    assert run_command(server, shop, *arguments).out == result.out  # found there
    status = millrace("status", "--workspace", str(shop))
    assert "step 0, lineages/main/step-00000000" in status.out

    done = run_pipeline(server, shop, *lines[-1].split()[3:5])
    assert "Released as 1" in done.out, done.err
    status = millrace("status", "--workspace", str(shop))
    assert "2026-02, step 20, " in status.out
    assert re.findall(r"^(2026-\d\d) +v1 +40 +main", status.out, re.M) == ["2026-01", "2026-02"]


def test_an_import_that_fails_can_be_repeated(server: Server, shop: Path) -> None:
    file = str(shop.parent / "weights.pt")
    refused = run_command(server, shop, "import-checkpoint", file, FAKE_FAIL="import-checkpoint:CONFIG")
    assert (refused.code, refused.out) == (78, "")
    assert refused.err.splitlines()[-1] == "CONFIG: row 3 is bad"
    assert run_command(server, shop, "import-checkpoint", file, "--json").code == 0
