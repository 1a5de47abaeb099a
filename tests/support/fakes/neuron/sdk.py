"""The Neuron SDK as an image has it: its Python packages and programs, as small files that lead to `runtime.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.fakes.neuron.runtime import FOLDER

_MODULES = {
    "torch_neuronx/__init__.py": "from tests.support.fakes.neuron.runtime import install\n\ninstall()\n",
    # torch-xla's own code calls it before it sets the variables of Neuron.
    "libneuronxla/__init__.py": "import os\n\n\ndef configure_environment():\n    os.environ['PJRT_DEVICE'] = 'CPU'\n",
    "libneuronxla/libneuronpjrt_path.py": "def libneuronpjrt_path():\n    return '/opt/none'\n",
}
_VERSIONS = {"torch_neuronx": "2.9.0.2.14.27725", "neuronx_cc": "2.25.3371.0"}

_COMPILER = """
import json, os, pathlib, sys
module, when = pathlib.Path(sys.argv[1]), sys.argv[2]
host = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "here").rstrip("/").rpartition("/")[2]
seen = {"host": host, "module": module.name, "when": when, "affinity": sorted(os.sched_getaffinity(0))}
with open(os.path.join(os.environ["NEURON_STAND_IN"], "compilations.jsonl"), "a") as log:
    log.write(json.dumps(seen | {"environment": dict(os.environ)}) + "\\n")
(module / "model.neff").write_text(f"neff of {module.name}")
(module / "model.done").touch()
"""

_PARALLEL_COMPILE = """
import argparse, json, os, pathlib, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--command", default="collect-and-compile")
parser.add_argument("--num_parallel", type=int)
parser.add_argument("--parallel_compile_workdir")
own, command = parser.parse_known_args()
pathlib.Path(own.parallel_compile_workdir).mkdir(parents=True)
trial = subprocess.run(command, env=os.environ | {"NEURON_EXTRACT_GRAPHS_ONLY": "1"})
if trial.returncode != 0:
    print("ERROR ||NEURON_PARALLEL_COMPILE||: There was an error in the training script.")
    sys.exit(1)
if own.command == "collect":
    sys.exit(0)
modules = sorted(pathlib.Path(os.environ["NEURON_COMPILE_CACHE_URL"]).glob("neuronxcc-*/MODULE_*"))
todo = [module for module in modules if not (module / "model.done").exists()]
if not todo:
    print("INFO ||NEURON_PARALLEL_COMPILE||: No todo hlos found in cache or hlo_tasklist, returning")
    sys.exit(0)
for module in todo:
    subprocess.run(["neuronx-cc", str(module), "ahead of time"], check=True)
entries = {str(module / "model.hlo_module.pb"): {"status": True, "retry": 0, "compile_time": 1.25} for module in todo}
report = {"compilation_summary": {"true": len(todo)}, "compilation_report": entries}
text = json.dumps(report | {"start_time": time.time(), "compilation_time": 2.5})
pathlib.Path(f"neuron_parallel_compile_results_{time.time()}.json").write_text(text)
"""


class NeuronSdk:
    """Its files below a folder, and what the processes that use it have written there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, text in _MODULES.items():
            (folder / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "site" / name).write_text(text)
        for name, version in _VERSIONS.items():
            about = folder / "site" / f"{name}-{version}.dist-info"
            about.mkdir()
            words = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (about / "METADATA").write_text(words)
        for name, script in {"neuronx-cc": _COMPILER, "neuron_parallel_compile": _PARALLEL_COMPILE}.items():
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/usr/bin/env -S python3 -IS\n{script}")
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What an image with it has in its environment."""
        return {
            "PYTHONPATH": str(self._folder / "site"),
            "PATH": str(self._folder / "bin"),
            FOLDER: str(self._folder),
        }

    def compilations(self) -> list[dict[str, Any]]:
        """Each run of the compiler: host, module, when, affinity, environment."""
        return self._log("compilations")

    def cores(self) -> list[dict[str, Any]]:
        """Each device that was opened: host, pid, rank, visible cores, whether only to collect graphs."""
        return self._log("cores")

    def _log(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
