"""A toy stage, metric, setting and command, added to a copy of the source: gaps are named, then all work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tests.support.fakes.fake_runner import ingest

ROOT = Path(__file__).resolve().parents[2]

STAGE = {
    "tasks/polish.py": "",
    "tasks/worker/polish.py": """
from tasks.contracts.outcomes import PolishOutcome

def run(job):
    return PolishOutcome(shine=job.spec.inputs.cloths * 2)
""",
    "tests/tasks/worker/test_polish.py": "",
}
TRAITS = '    polish = Traits("polish", workers=lambda config: 2)\n'
INPUTS = """class PolishInputs(Record):
    stage: Literal[Stage.polish] = Stage.polish
    cloths: int


"""
OUTCOME = """class PolishOutcome(Record):
    stage: Literal[Stage.polish] = Stage.polish
    shine: int

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


"""
COMMAND = '''
from collections.abc import Iterator

from flows.cli.terminal.command import command
from infra.store.base import Store
from tasks.foundation.records import Record


class Greeting(Record):
    """`millrace greet`."""

    words: str


def page(output: Greeting) -> Iterator[str]:
    yield output.words


@command(page)
def greet(store: Store) -> Greeting:
    """Greet whoever opens a workspace."""
    return Greeting(words=f"good day to {store.uri}")
'''
USE = """
import sys
from pathlib import Path

import numpy as np

from configs.load import load_config
from flows.presentation.stages.facts import StageFacts, section_of
from infra.compute.factory import make_runner
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, PolishInputs
from tasks.contracts.outcomes import PolishOutcome
from tasks.contracts.references import SpanRef
from tasks.contracts.stages import workers_of
from tasks.quality.row_metrics import retrieval_metrics

GATE = "evaluate.gates=[{metric: recall@3, direction: higher, threshold: 0, baseline: none, severity: critical}]"


class Waiter:
    flow_run = ""
    log = progress = tried = print
    pulse = lambda self: None


config, store = load_config(overrides=[GATE]), DirectoryStore(Path(sys.argv[1]))
inputs = PolishInputs(cloths=21)
spec = JobSpec(
    run_key="f00d", span=SpanRef(name="2026-01", version=1), attempt=1, submitted_as=1, workspace=store.uri,
    workers=workers_of(config, inputs.stage), config=config, inputs=inputs,
)
store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())
make_runner(config, store, spec.stage).run(spec, Waiter(), 1)
assert '"shine": 42' in store.read("runs/f00d/polish/result.json").decode()
page = section_of(spec.stage, StageFacts(store.uri, None, PolishOutcome(shine=42), ()))
assert (page.title, page.tables[0].rows[0][1].text) == ("Polish: done", "42")
assert retrieval_metrics(np.array([1, 3, 4, 5, 1]), np.array([3, 9, 3, 4, 2]))["recall@3"] == 0.5
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    for top in ("configs", "docs", "flows", "infra", "tasks", "tests"):
        shutil.copytree(ROOT / top, folder / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, timeout=300
    )


def insert(path: Path, before: str, text: str) -> None:
    source = path.read_text()
    assert source.count(before) == 1, (path, before)
    path.write_text(source.replace(before, text + before))


@pytest.mark.proof
def test_a_stage_is_added_by_seven_edits_and_a_metric_by_following_the_messages(copy: Path, tmp_path: Path) -> None:
    contracts, schema = copy / "tasks/contracts", copy / "configs/schema"
    insert(contracts / "stages.py", "\n\nREFRESHING = ", TRAITS)
    insert(schema / "gates.py", '    "mrr@10": ', '    "recall@3": Metric(Family.ranking, None),\n')
    sentences = run(copy, "-m", "tests.planes.recipes").stdout.splitlines()
    assert [one.partition(": ")[0] for one in sentences] == ["stage polish"] * 7 + ["metric recall@3"] * 2
    for sentence, place in zip(
        sentences,
        [
            "tasks/polish.py",
            "tasks/worker/polish.py",
            "tasks/contracts/jobs.py",
            "tasks/contracts/outcomes.py",
            "infra/aws/millrace.yaml",
            "tests/tasks/worker/test_polish.py",
            "flows/pipeline.py",
            "tasks/quality/row_metrics.py",
            "tests/tasks/quality/test_row_metrics.py",
        ],
        strict=True,
    ):
        assert place in sentence

    insert(contracts / "jobs.py", "class ImportInputs(", INPUTS)
    insert(contracts / "jobs.py", "    | ImportInputs\n", "    | PolishInputs\n")
    insert(contracts / "outcomes.py", "class ImportOutcome(", OUTCOME)
    insert(contracts / "outcomes.py", "    | ImportOutcome\n", "    | PolishOutcome\n")
    insert(copy / "flows/pipeline.py", "from tasks.release import release\n", "from tasks.polish import polish\n")
    properties = "    Type: AWS::Batch::JobDefinition\n    Properties: {JobDefinitionName: !Sub '${Name}-polish'}\n\n"
    insert(copy / "infra/aws/millrace.yaml", "  PublishDefinition:\n", f"  PolishDefinition:\n{properties}")
    for path, text in STAGE.items():
        (copy / path).write_text(text)
    insert(copy / "tasks/quality/row_metrics.py", '    "mrr@10": ', '    "recall@3": lambda ranks: ranks <= 3,\n')
    with (copy / "tests/tasks/quality/test_row_metrics.py").open("a") as tests:
        tests.write('assert "recall@3"\n')

    left = run(copy, "-m", "tests.planes.recipes")
    assert (left.returncode, left.stdout.strip()) == (0, ""), left.stdout + left.stderr
    used = run(copy, "-c", USE, str(tmp_path / "workspace"))
    assert used.returncode == 0, used.stdout + used.stderr


def test_a_setting_is_added_by_two_edits(copy: Path) -> None:
    field = '    coats: Positive = Field(description="coats of polish")\n'
    insert(copy / "configs/schema/stages.py", "\n\nclass NearDuplicatesConfig(", field)
    insert(copy / "configs/base.yaml", "\nmodel:\n", "  coats: 3\n")
    shown = run(copy, "-c", "from flows.cli import main; main()", "config", "warmup.coats", "--set", "warmup.coats=4")
    for words in ("warmup.coats: 4  # --set", "coats of polish", "default 3; decides the result"):
        assert words in shown.stdout, shown.stdout + shown.stderr
    assert run(copy, "-m", "tests.docs").returncode == 0
    assert "coats of polish" in (copy / "docs/configuration.md").read_text()


@pytest.mark.proof
def test_a_command_is_added_by_three_edits(copy: Path, tmp_path: Path) -> None:
    insert(copy / "flows/cli/app.py", '        "doctor": ', '        "greet": "greeting",\n')
    sentences = run(copy, "-m", "tests.planes.recipes").stdout.splitlines()
    assert sentences == [
        "command greet: add its function to flows/cli/greeting.py, with `@command`",
        "command greet: add its row to docs/cli.md",
    ]
    (copy / "flows/cli/greeting.py").write_text(COMMAND)
    insert(copy / "docs/cli.md", "| `millrace doctor` |", "| `millrace greet` | greets |\n")
    assert run(copy, "-m", "tests.planes.recipes").stdout.strip() == ""

    ingest(DirectoryStore(tmp_path / "workspace"), "2026-01")
    millrace = ("-c", "from flows.cli import main; main()")
    assert "Greet whoever opens a workspace." in run(copy, *millrace, "--help").stdout
    greeted = run(copy, *millrace, "greet", "--workspace", str(tmp_path / "workspace"))
    assert (greeted.returncode, greeted.stdout) == (0, f"good day to {tmp_path}/workspace\n"), greeted.stderr
    as_json = run(copy, *millrace, "greet", "--json", "--workspace", str(tmp_path / "workspace"))
    assert json.loads(as_json.stdout) == {"words": f"good day to {tmp_path}/workspace"}
    nowhere = run(copy, *millrace, "greet", "--workspace", str(tmp_path / "typo"))
    assert (nowhere.returncode, "holds no span" in nowhere.stderr) == (78, True)
