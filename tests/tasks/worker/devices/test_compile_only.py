"""The compile-only mode of TorchNeuron around a trial run that is a few lines of a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.foundation.errors import CompileError, ConfigError
from tasks.worker.devices.accelerators import make_accelerator
from tasks.worker.devices.compile_only import SWITCH, collect_only, compile_only
from tasks.worker.process.job import Rank
from tests.support.fakes.neuron import native
from tests.support.workspace.jobs import tiny_config

TRIAL = """mkdir -p "$0/ab/cd"
echo "mode $TORCH_NEURONX_COMPILE_ONLY"
for one in $GRAPHS; do echo x > "$0/ab/cd/$one.neff"; done"""


def trial(cache: Path, graphs: str, more: str = "") -> tuple[list[str], dict[str, str]]:
    return ["sh", "-c", TRIAL + more, str(cache)], {"PATH": "/usr/bin:/bin", "GRAPHS": graphs}


def test_it_returns_the_graphs_that_were_missing_and_shows_every_line(tmp_path: Path) -> None:
    said: list[str] = []
    command, environment = trial(tmp_path, "one two")
    first = compile_only(command, tmp_path, tmp_path, environment, 4, said.append)
    assert [graph.name for graph in first] == ["one.neff", "two.neff"]
    assert all(graph.compiled and graph.seconds >= 0 for graph in first)
    assert said == ["mode 1"]
    command, environment = trial(tmp_path, "one two three")
    assert collect_only(command, tmp_path, tmp_path, environment, said.append) == {"three.neff"}
    assert compile_only(command, tmp_path, tmp_path, environment, None, said.append) == ()


def test_a_trial_that_fails_is_a_compile_error_with_its_last_lines(tmp_path: Path) -> None:
    """Even though it has compiled a graph, which stays for the next attempt."""
    command, environment = trial(tmp_path, "one", more="; echo NCC_EMOD025: Dynamic shape >&2; exit 3")
    with pytest.raises(CompileError, match=r"(?s)with 3: .*EMOD025"):
        compile_only(command, tmp_path, tmp_path, environment, None, lambda line: None)
    assert (tmp_path / "ab/cd/one.neff").exists()


def test_a_trial_without_graphs_is_a_compile_error_that_names_the_mode(tmp_path: Path) -> None:
    command, environment = trial(tmp_path, "")
    with pytest.raises(CompileError, match=f"{tmp_path}, .*{SWITCH}"):
        compile_only(command, tmp_path, tmp_path, environment, None, lambda line: None)


def test_the_mode_in_the_environment_of_a_stage_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else training would execute nothing, and find no error in zeros."""
    about = tmp_path / f"torch_neuronx-{native.VERSION}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {native.VERSION}\n")
    (tmp_path / "torch_neuronx.py").write_text("raise AssertionError('refused before its import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(SWITCH, "1")
    config = tiny_config("accelerator=neuron", "compiler.target=trn2")
    with pytest.raises(ConfigError, match=rf"{SWITCH} is 1 .*unset"):
        make_accelerator("neuron", Rank(0, 1, 0), config, "fp32")
