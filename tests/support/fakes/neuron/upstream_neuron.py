"""What importing torch-neuronx does to a process's environment, by torch-xla's own code for it.

`torch_xla._internal.neuron` is loaded without torch-xla itself, which would choose this process's device.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NAME = "upstream_neuron_internal"


def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; what it imports of torch-xla is empty, and its own neighbour is the real one."""
    found = importlib.util.find_spec("torch_xla")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "_internal"
    package = ModuleType(NAME)
    package.__path__ = [str(folder)]
    plugins = ModuleType("torch_xla.experimental.plugins")
    plugins.__dict__["DevicePlugin"] = object
    experimental = ModuleType("torch_xla.experimental")
    experimental.__dict__["plugins"] = plugins
    for name, module in {NAME: package, "torch_xla.experimental": experimental}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("neuron_utils", "neuron"):
        spec = importlib.util.spec_from_file_location(f"{NAME}.{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"{NAME}.{name}", module)
        spec.loader.exec_module(module)
    return sys.modules[f"{NAME}.neuron"]


def after_import(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> dict[str, str]:
    """The environment of a process that began with `given` and then imported torch-neuronx.

    Raises:
        ValueError: upstream refuses it.
    """
    module = load(monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(given):
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        before = dict(os.environ)
        try:
            module.set_envvar_defaults()
            module.configure_pjrt_environment()
            return dict(os.environ)
        finally:
            os.environ.clear()
            os.environ.update(before)
