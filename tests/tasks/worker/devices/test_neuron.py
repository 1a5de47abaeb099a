"""Without the hardware only the refusals can be tested."""

from pathlib import Path

import pytest

from tasks.foundation.errors import ConfigError
from tasks.worker.devices.accelerators import make_accelerator
from tasks.worker.process.job import Rank

ALONE = Rank(0, 1, 0)


def install(folder: Path, version: str) -> None:
    (folder / "torch_neuronx.py").write_text("")
    about = folder / f"torch_neuronx-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {version}\n")


@pytest.mark.shows("native refusals")
def test_without_the_package_the_error_names_it():
    with pytest.raises(ConfigError, match=r"torch-neuronx 2\.13 or newer; torch-neuronx is not installed here"):
        make_accelerator("neuron", ALONE)


@pytest.mark.shows("native refusals")
def test_the_package_of_pytorch_xla_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "2.9.0.2.14.27725")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"2\.9\.0\.2\.14\.27725, which is PyTorch/XLA: use accelerator: xla"):
        make_accelerator("neuron", ALONE)


def test_the_docstring_says_that_it_is_unproven():
    from tasks.worker.devices import neuron

    assert "UNPROVEN" in (neuron.__doc__ or "")
