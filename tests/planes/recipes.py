"""The gaps of a new stage, metric, accelerator, store, loss, label head, target, export, kind or command, as sentences.

`python -m tests.planes.recipes` prints the sentences and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml

from configs.load import BASE
from configs.schema.compute import ACCELERATORS
from configs.schema.gates import METRICS, Family
from configs.schema.model import LabelHead
from configs.schema.stages import KINDS, ExportKind
from configs.schema.training import HeadsConfig
from flows.cli.app import MODULES, module_name
from infra.store.base import Store
from infra.store.factory import STORES, open_store
from tasks.contracts.jobs import Inputs
from tasks.contracts.outcomes import Outcome
from tasks.contracts.stages import Chore, Stage
from tasks.data.files.exports import EXPORTS
from tests.planes.source import ROOT
from tests.support.cloud.requests import definitions


def missing() -> Iterator[str]:
    """Every thing that is missing, in the order in which it is best added."""
    for work in (*Stage, *Chore):
        yield from _of_work(work)
    for name in METRICS:
        yield from _of_metric(name)
    for name in ACCELERATORS:
        yield from _of_accelerator(name)
    for scheme in STORES:
        yield from _of_store(scheme)
    for head, field in HeadsConfig.model_fields.items():
        yield from _of_loss(head)
        if any(isinstance(kind, type) and issubclass(kind, LabelHead) for kind in get_args(field.annotation)):
            yield from _of_label_head(head)
    for kind in KINDS:
        yield from _of_target(kind)
    for export in EXPORTS:
        yield from _of_export(export.name)
    for kind in get_args(ExportKind):
        yield from _of_kind(kind)
    for modules in MODULES.values():
        for name, module in modules.items():
            yield from _of_command(name, f"{module_name(module).replace('.', '/')}.py")


def _of_work(work: Stage | Chore) -> Iterator[str]:
    about = f"{'stage' if isinstance(work, Stage) else 'chore'} {work}"
    path = f"{work.module.replace('.', '/')}.py"
    yield from _without_file(about, f"tasks/{path}", "what the control plane does")
    yield from _without_file(about, f"tasks/worker/{path}", "what a worker does, in `run(job)`")
    if not _records_of(work, Inputs):
        yield f"{about}: add the record of its inputs to tasks/contracts/jobs.py and to `Inputs` there"
    if not _records_of(work, Outcome):
        yield f"{about}: add the record of its outcome to tasks/contracts/outcomes.py and to `Outcome` there"
    elif not all(hasattr(record, "outputs") for record in _records_of(work, Outcome)):
        yield f"{about}: say in `outputs` of its outcome in tasks/contracts/outcomes.py which folders it makes"
    if f"millrace-{work}" not in definitions():
        yield f"{about}: add its job definition to infra/aws/millrace.yaml"
    yield from _without_file(
        about, f"tests/tasks/worker/{path}".replace(f"{work.name}.py", f"test_{work.name}.py"), "its tests"
    )
    if isinstance(work, Stage):
        yield from _of_stage(work, about)


def _of_stage(stage: Stage, about: str) -> Iterator[str]:
    if not re.search(
        rf"^from tasks\.{stage} import (\w+, )*{stage}(, \w+)*$", _text("flows/pipeline.py"), re.MULTILINE
    ):
        yield f"{about}: call it in flows/pipeline.py"


def _of_metric(name: str) -> Iterator[str]:
    from tasks.quality.label_metrics import LABEL
    from tasks.quality.row_metrics import CLASSIFICATION, LIKELIHOOD, RANKING
    from tasks.quality.vector_metrics import COMPATIBILITY, VECTORS

    about, metric = f"metric {name}", METRICS[name]
    tables = {
        Family.ranking: ("RANKING", RANKING),
        Family.likelihood: ("LIKELIHOOD", LIKELIHOOD),
        Family.classification: ("CLASSIFICATION", CLASSIFICATION),
        Family.label: ("LABEL", LABEL),
        Family.vectors: ("VECTORS", VECTORS),
        Family.compatibility: ("COMPATIBILITY", COMPATIBILITY),
    }
    table, formulas = tables[metric.family]
    file = "row_metrics" if metric.family.of_rows else "vector_metrics"
    file = "label_metrics" if metric.family is Family.label else file
    if name not in formulas:
        yield f"{about}: add its formula to {table} in tasks/quality/{file}.py"
    if metric.head is not None and metric.head not in HeadsConfig.model_fields:
        yield f"{about}: its head {metric.head} is not in HeadsConfig in configs/schema/training.py"
    yield from _untested(about, name, f"tests/tasks/quality/test_{file}.py")


def _of_accelerator(name: str) -> Iterator[str]:
    from tasks.worker.devices.accelerators import DEVICES

    about = f"accelerator {name}"
    yield from _without_file(about, f"tasks/worker/devices/{name}.py", "how it works")
    if name not in DEVICES:
        yield f"{about}: add its entry to DEVICES in tasks/worker/devices/accelerators.py"
    yield from _untested(about, name, "tests/tasks/worker/test_accelerators.py", "tests/tasks/worker/devices")


def _of_store(scheme: str) -> Iterator[str]:
    about = f"store {scheme}://"
    store = open_store(f"{scheme}://bucket/prefix")
    lacking = [name for name in dir(Store) if not name.startswith("_") and not hasattr(store, name)]
    if lacking:
        yield f"{about}: {type(store).__name__} lacks {', '.join(lacking)}"
    yield from _untested(about, f"{scheme}://", "tests/infra/store")


def _of_loss(head: str) -> Iterator[str]:
    from tasks.worker.training.losses import LOSSES

    about = f"loss {head}"
    if head not in LOSSES:
        yield f"{about}: add its function to LOSSES in tasks/worker/training/losses.py"
    if head not in yaml.safe_load(BASE.read_text())["heads"]:
        yield f"{about}: add it to the section heads of configs/base.yaml"
    yield from _untested(about, head, "tests/tasks/worker/training/losses/test_losses.py")


def _of_label_head(head: str) -> Iterator[str]:
    from tasks.quality.label_metrics import SKILLS
    from tasks.worker.model.label_heads import LABEL_TASKS

    about = f"label head {head}"
    yield from _without_file(about, f"tasks/worker/model/{head}.py", "its loss, its answers, how it is solved")
    if head not in LABEL_TASKS:
        yield f"{about}: add its entry to LABEL_TASKS in tasks/worker/model/label_heads.py"
    if not [name for name, metric in METRICS.items() if metric.head == head and metric.family is Family.label]:
        yield f"{about}: add a metric of it to METRICS in configs/schema/gates.py"
    if head not in SKILLS:
        yield f"{about}: say in SKILLS in tasks/quality/label_metrics.py what tells whether it has learnt"
    yield from _untested(about, head, "tests/tasks/worker/model")


def _of_export(name: str) -> Iterator[str]:
    yield from _untested(name, f'"{name}"', "tests/tasks/data/files/test_exports.py")
    if f"| {name} " not in _text("docs/data.md"):
        yield f"{name}: add its row to the table of known exports in docs/data.md"


def _of_kind(kind: str) -> Iterator[str]:
    from tasks.worker.online.kinds import KINDS as FORMS

    about = f"export kind {kind}"
    yield from _without_file(about, f"tasks/worker/online/{kind.replace('-', '_')}.py", "how it is made and opened")
    if kind not in FORMS:
        yield f"{about}: add its entry to KINDS in tasks/worker/online/kinds.py"
    if f"| `{kind}` |" not in _text("docs/online.md"):
        yield f"{about}: add its row to the table of exports in docs/online.md"


def _of_target(kind: str) -> Iterator[str]:
    from tasks.worker.export.targets import TARGETS

    about = f"target {kind}"
    yield from _without_file(about, f"tasks/worker/export/{kind}.py", "how releases are kept and served there")
    if kind not in TARGETS:
        yield f"{about}: add its entry to TARGETS in tasks/worker/export/targets.py"
    extras = tomllib.loads(_text("pyproject.toml"))["project"]["optional-dependencies"]
    if kind not in extras:
        yield f"{about}: add the extra {kind} with its client to pyproject.toml"
    elif not any(line.startswith("millrace[") and kind in line for line in extras["test"]):
        yield f"{about}: add the extra {kind} to the extra test in pyproject.toml"
    yield from _untested(about, f"{kind}_place", "tests/tasks/worker/export/places.py")
    if f"## {kind}\n" not in _text("docs/publish.md"):
        yield f"{about}: add what its consumers read to docs/publish.md, under the title {kind}"


def _of_command(name: str, path: str) -> Iterator[str]:
    body = ast.parse(_text(path)).body if (ROOT / path).is_file() else []
    if name.replace("-", "_") not in {each.name.rstrip("_") for each in body if isinstance(each, ast.FunctionDef)}:
        yield f"command {name}: add its function to {path}, with `@command`"
    if f"\n| `millrace {name}` | " not in _text("docs/cli.md"):
        yield f"command {name}: add its row to docs/cli.md"


def _records_of(work: Stage | Chore, union: Any) -> list[type]:
    return [record for record in get_args(union) if record.model_fields["stage"].default is work]


def _without_file(about: str, path: str, what: str) -> Iterator[str]:
    if not (ROOT / path).is_file():
        yield f"{about}: add {path}, {what}"


def _untested(about: str, word: str, *places: str) -> Iterator[str]:
    files = [file for place in places for file in [ROOT / place, *(ROOT / place).rglob("*.py")] if file.is_file()]
    if not any(word in file.read_text() for file in files):
        yield f"{about}: add tests to {places[-1]}"


def _text(path: str) -> str:
    return Path(ROOT / path).read_text()


if __name__ == "__main__":
    sentences = list(missing())
    print(*sentences, sep="\n")
    sys.exit(bool(sentences))
