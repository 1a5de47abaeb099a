"""Stages that do what a test wants, started by the real runner as `python -m tasks.worker`.

A `sitecustomize.py` on the workers' PYTHONPATH puts a module in the place of `tasks.worker.health`; all else is real.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from configs.load import load_config
from infra.store.base import Store
from tasks.contracts.jobs import BatchAttempt, HealthInputs, JobSpec, Progress
from tasks.contracts.references import SpanRef
from tasks.foundation.errors import CancelledError

_SITE = """
import sys, types
for stage in ("warmup", "train", "evaluate", "infer", "release"):  # a warm parent would load torch for them
    sys.modules["tasks.worker." + stage] = types.ModuleType(stage)
for library in ("transformers.models.bert.modeling_bert", "sklearn.linear_model"):
    sys.modules[library] = types.ModuleType("unused")
library = types.ModuleType("sentence_transformers")
sys.modules[library.__name__] = library
def own_modules(*arguments, **named):
    raise ImportError(" ".join(sorted(name for name in sys.modules if name.startswith(("tasks", "infra", "configs")))))
library.SentenceTransformer = own_modules
stand_in = types.ModuleType("tasks.worker.health")
sys.modules[stand_in.__name__] = sys.modules["tasks.worker.validate"] = stand_in

def run(job):  # reads the body in the worker: several tests share its warm parent
    path = __file__.replace("sitecustomize.py", "body.py")
    exec(compile(open(path).read(), "stand-in", "exec"), stand_in.__dict__)
    return stand_in.run(job)

stand_in.run = run
{at_start}
"""
_HEAD = """
import os, signal, subprocess, sys, time

def outcome():
    from tasks.contracts.outcomes import HealthOutcome
    return HealthOutcome(device="none", matmul_gflops=(1.0,), slowest_to_median=1.0, free_memory_gib=(1.0,),
                         free_disk_gib=1.0, collectives={}, checks=())

def wait_for(job, name):
    while not job.store.exists(f"{job.spec.attempt_prefix}/{name}"):
        time.sleep(0.01)

def say(text):
    print(text, flush=True)
"""


class Heard:
    """A waiter that remembers what a stage said. `stop` makes it ask for the end."""

    flow_run = ""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[Progress] = []
        self.tries: list[BatchAttempt] = []
        self.stop = False

    def log(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, progress: Progress) -> None:
        self.steps.append(progress)

    def tried(self, one: BatchAttempt) -> None:
        self.tries.append(one)

    def pulse(self) -> None:
        if self.stop:
            raise CancelledError("the test wants it to stop")

    def numbers(self, word: str) -> list[int]:
        """The numbers in the lines `<word> <number>`, such as the pids that workers print."""
        said = (line.rpartition("] ")[2].split() for line in self.lines)
        return [int(words[1]) for words in said if len(words) == 2 and words[0] == word]


def replace_health(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str, at_start: str = "") -> None:
    """From now on, workers started with this process's environment run `body` as the module of stage health.

    It defines `run(job)`, and finds `outcome()`, `wait_for(job, name)` (a file of the attempt), `say(text)` and the
    modules os, signal, subprocess, sys, time in place. A warm parent runs `at_start` too, before all else.
    """
    folder.mkdir(exist_ok=True)
    (folder / "body.py").write_text(_HEAD + textwrap.dedent(body))
    (folder / "sitecustomize.py").write_text(_SITE.format(at_start=textwrap.dedent(at_start)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))


def health_spec(store: Store, workers: int = 1, *overrides: str) -> JobSpec:
    """The spec of a health stage, written to the workspace as the control plane does."""
    spec = JobSpec(
        run_key="run",
        span=SpanRef(name="2026-01", version=1),
        attempt=1,
        submitted_as=1,
        workspace=store.uri,
        workers=workers,
        config=load_config(None, ["model.pretrained=none", f"train.workers={workers}", *overrides]),
        inputs=HealthInputs(),
    )
    store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    return spec


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; one that ended but was not waited for counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
