"""The Neuron SDK's programs as small scripts on PATH, which say and do what the real ones are documented to.

`neuron_parallel_compile` runs the given command for real; how it fails is said by the variables FAKE_*.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[3] / "tasks/worker/devices/samples"
COMPILER = "neuronxcc-2.25.3371.0+f524f91d"

_OUTPUT = """
import json, os, sys
if log := os.environ.get("FAKE_LOG"):
    with open(log, "a") as file:
        file.write(json.dumps({{"argv": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd()}}) + "\\n")
sys.stdout.write({stdout!r})
sys.stderr.write({stderr!r})
sys.stdout.flush()
{body}
sys.exit({code})
"""

# FAKE_GRAPHS: graphs in the program (2). FAKE_FAIL: how many of them do not compile (0). FAKE_MODE: see the branches.
_PARALLEL_COMPILE = """
import argparse, json, os, pathlib, subprocess, sys, time
parser = argparse.ArgumentParser(allow_abbrev=True)
parser.add_argument("--command", default="collect-and-compile")
parser.add_argument("--num_parallel", type=int)
parser.add_argument("--parallel_compile_workdir")
parser.add_argument("--world_size")
own, command = parser.parse_known_args()
mode = os.environ.get("FAKE_MODE", "")
if log := os.environ.get("FAKE_LOG"):
    with open(log, "a") as file:
        seen = {"own": vars(own), "command": command, "cwd": os.getcwd(), "environment": dict(os.environ)}
        file.write(json.dumps(seen) + "\\n")
pathlib.Path(own.parallel_compile_workdir).mkdir(parents=True)
environment = os.environ | {"NEURON_EXTRACT_GRAPHS_ONLY": "1"}
collected = pathlib.Path(os.environ["NEURON_COMPILE_CACHE_URL"], "collected")
collected.parent.mkdir(parents=True, exist_ok=True)
collected.touch()
trial = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(trial.stdout, end="", flush=True)
if trial.returncode != 0:
    print("ERROR ||NEURON_PARALLEL_COMPILE||: There was an error in the training script.")
    sys.exit(1)
if not collected.exists():
    print("ERROR: the command has removed what it collected")
    sys.exit(1)
collected.unlink()
versions = pathlib.Path(os.environ["NEURON_COMPILE_CACHE_URL"], "COMPILER")
total, failing = int(os.environ.get("FAKE_GRAPHS", "2")), int(os.environ.get("FAKE_FAIL", "0"))
modules = [versions / f"MODULE_{number:05d}+d41d8cd9" for number in range(total)]
todo = [module for module in modules if not (module / "model.done").exists()]
for module in todo:
    module.mkdir(parents=True, exist_ok=True)
    (module / "model.hlo_module.pb").write_bytes(b"hlo of " + module.name.encode())
    path = module / "model.hlo_module.pb"
    print(f"INFO ||NEURON_CC_WRAPPER||: Extracting graphs ({path}) for ahead-of-time parallel compilation.")
if not todo:
    print("INFO ||NEURON_PARALLEL_COMPILE||: No todo hlos found in cache or hlo_tasklist, returning")
    sys.exit(0)
if own.command == "collect":
    sys.exit(0)
if mode == "silent":
    print("INFO ||NEURON_PARALLEL_COMPILE||: sub-process 0 got exception: out of files")
    sys.exit(0)
entries = {}
for number, module in enumerate(todo):
    if (module / "model.log").exists():  # a failure of an earlier run, which is never tried again
        compiled = False
    elif mode == "killed" and number == 0:
        continue
    elif number < failing:
        compiled = False
        lines = [f"line {line} of {module.name}" for line in range(30)]
        (module / "model.log").write_text("\\n".join([*lines, f"[NCC_EVRF009] {module.name} does not fit"]))
    else:
        compiled = True
        (module / "model.neff").write_bytes(b"neff of " + module.name.encode())
        (module / "model.done").touch()
    key = str(module / "model.hlo_module.pb")
    entries[key] = {"status": compiled, "retry": 0, "compile_time": 1.25}
if mode == "lying":
    (todo[0] / "model.neff").unlink()
failed = sum(not entry["status"] for entry in entries.values())
summary = {"true": len(entries) - failed, "false": failed}
summary = {key: count for key, count in summary.items() if count}
if mode == "disagree":
    summary = {"true": len(entries)}
report = {"compilation_summary": summary, "compilation_report": entries}
report |= {"start_time": time.time(), "compilation_time": 2.5}
text = json.dumps(report, indent=4)
if mode == "malformed":
    text = text[: len(text) // 2]
if os.environ.get("NEURON_PARALLEL_COMPILE_DUMP_RESULTS"):
    pathlib.Path(f"neuron_parallel_compile_results_{time.time()}.json").write_text(text)
    total = {"total_neuron_parallel_compile_time": 2.6}
    pathlib.Path(f"total_neuron_parallel_compile_results_{time.time()}.json").write_text(json.dumps(total))
print(f"INFO ||NEURON_PARALLEL_COMPILE||: Total failed compilations: {failed}", flush=True)
sys.exit(failed % 256)
""".replace("COMPILER", COMPILER)


class FakeTools:
    """A folder of executables that comes first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def add(self, name: str, stdout: str = "", stderr: str = "", code: int = 0, body: str = "") -> None:
        """A program that prints, runs `body` (with json, os and sys in place) and exits."""
        self.write(name, _OUTPUT.format(stdout=stdout, stderr=stderr, code=code, body=body))

    def add_parallel_compile(self) -> None:
        self.write("neuron_parallel_compile", _PARALLEL_COMPILE)

    def write(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!{sys.executable} -IS\n{script}")
        path.chmod(0o755)


def sample(name: str) -> str:
    """A recorded output."""
    return (SAMPLES / name).read_text()


def make_sysfs(root: Path, devices: int) -> Path:
    """The driver's tree of that many devices, with no ECC event; gives `root`."""
    for device in range(devices):
        for counter in ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected"):
            set_counter(root, device, counter, 0)
    return root


def set_counter(root: Path, device: int, counter: str, events: int) -> None:
    """Let a device have had so many ECC events."""
    folder = root / f"neuron{device}" / "stats" / "hardware"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / counter).write_text(f"{events}\n")
