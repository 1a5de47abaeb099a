"""Where the faults happen: S3, AWS Batch and a Prefect server on free ports of this machine, and a small shop.

`World` is made once. Each fault gets a `Scene`: a workspace of its own, in which all is done but the stages it hits.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from infra import prefect_password
from infra.store.base import Store
from infra.store.factory import open_store
from infra.store.manifest import read_manifest
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.runs import ledger
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.s3 import S3Server
from tests.support.workspace.shop import MILLRACE, SETTINGS, CommandResult, write_shop

T = TypeVar("T")

SPAN = "2026-01"
ROWS = 400
GRACE_SECONDS = 30.0  # from SIGTERM to SIGKILL, as on AWS
SECONDS = 600  # no command takes longer, and nothing is waited for longer
COLUMNS = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
FROM_TRAINING_ON = ("train", "evaluate", "infer", "release")
_MADE_BY = {"train": "lineages/", "infer": "vectors/", "release": "models/"}

_CHANGED: dict[str, dict[str, Any]] = {
    "train": {
        "workers": 2,
        "epochs": 60,
        "log_every_steps": 5,
        "checkpoint_every": "20 steps",
        "evaluate_every_steps": 100_000,
        "watchdog_seconds": 10,
    },
    "infer": {"workers": 4, "shard_rows": 32},
    "batch": {"capacity_seconds": 15, "heartbeat_timeout_seconds": 8},
    "retry": {"jitter": 0.0},
}


class World:
    """Runs from its making until `stop`. The containers inherit `containers`."""

    def __init__(self, folder: Path, containers: Mapping[str, str] | None = None) -> None:
        self.folder, self.config_file = folder, folder / "shop.yaml"
        self.home = folder / "prefect"
        self._environment(AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none", AWS_DEFAULT_REGION="us-east-1")
        self._environment(AWS_EC2_METADATA_DISABLED="true", PREFECT_HOME=str(self.home))
        self.s3 = S3Server()
        self._environment(AWS_ENDPOINT_URL=self.s3.url)
        os.environ.pop("PREFECT_API_URL", None)
        self.batch = BatchServer(dict(containers or {}), grace_seconds=GRACE_SECONDS, users=True)
        self._environment(AWS_ENDPOINT_URL_BATCH=self.batch.url, AWS_ENDPOINT_URL_CLOUDWATCH_LOGS=self.batch.url)
        self.batch.register_all()
        sections = {key: {**SETTINGS.get(key, {}), **changes} for key, changes in _CHANGED.items()}
        self.config_file.write_text(yaml.safe_dump({**SETTINGS, **sections, "compute": "batch"}))
        self.base = self.s3.new_workspace()
        source = folder / "shop.jsonl.gz"
        write_shop(source, spans=1, rows_per_span=ROWS, seed=3)
        ingest(open_store(self.base), source, Format.jsonl, "searched_at", SpanKind.month, COLUMNS)

    def stop(self) -> None:
        subprocess.run([MILLRACE, "down"], capture_output=True, timeout=SECONDS)
        self.batch.stop()
        self.s3.stop()

    def scene(self, stages: tuple[str, ...]) -> Scene:
        """A workspace like the first one, but without what these stages made and without the release; no fault yet."""
        self.s3.forget()
        self.batch.forget()
        self.batch.forgive()
        self.batch.delay(scheduling=0.0, starting=0.0, joining=1.0, logs=0.0, timeout_scale=1.0)
        uri = self.s3.new_workspace()
        left_out = ("releases/", ".locks/", *(_MADE_BY[stage] for stage in stages if stage in _MADE_BY))
        old, new = (one.removeprefix("s3://").split("/", 1) for one in (self.base, uri))
        for key in open_store(self.base).list(""):
            of_stage = key.split("/")[2] if key.startswith("runs/") else ""
            if not key.startswith(left_out) and of_stage not in stages:
                source = {"Bucket": old[0], "Key": f"{old[1]}/{key}"}
                self.s3.client.copy_object(Bucket=new[0], Key=f"{new[1]}/{key}", CopySource=source)
        return Scene(self, uri, stages)

    @staticmethod
    def _environment(**variables: str) -> None:
        """For this process and all that it starts."""
        os.environ.update(variables)


class Command:
    """`millrace` in a process of its own, with `environment` over this process's."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str] | None = None) -> None:
        self._out, self._err = (tempfile.TemporaryFile(dir=folder) for _ in range(2))  # noqa: SIM115
        self._popen = subprocess.Popen(
            [MILLRACE, *arguments], stdout=self._out, stderr=self._err, env={**os.environ, **(environment or {})}
        )

    @property
    def over(self) -> bool:
        return self._popen.poll() is not None

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def finish(self) -> CommandResult:
        """Wait for its end; one that takes too long is killed."""
        try:
            self._popen.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        texts = []
        for stream in (self._out, self._err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
            stream.close()
        return CommandResult(self._popen.returncode, *texts)


class Scene:
    """One fault's workspace, and the commands that are run in it."""

    def __init__(self, world: World, uri: str, stages: Sequence[str]) -> None:
        """`stages` are those that are not done yet."""
        self.world, self.uri, self.stages = world, uri, stages
        self.batch, self.s3 = world.batch, world.s3
        self.store: Store = open_store(uri)
        self.began = ledger.now()
        self._started = 0.0
        self._commands: list[Command] = []

    def start(self, *settings: str, environment: Mapping[str, str] | None = None) -> Command:
        """Begin `millrace run`."""
        self._started = self._started or time.monotonic()
        overrides = [word for setting in settings for word in ("--set", setting)]
        fixed = ("run", "--config", str(self.world.config_file), "--span", SPAN, "--workspace", self.uri, "--json")
        command = Command(self.world.folder, (*fixed, *overrides), environment)
        self._commands.append(command)
        return command

    def run(self, *settings: str) -> CommandResult:
        return self.start(*settings).finish()

    def abandon(self) -> None:
        """Kill the runs that go on."""
        for command in self._commands:
            command.send(signal.SIGKILL)  # nothing, to one that has ended

    def millrace(self, *arguments: str) -> CommandResult:
        return Command(self.world.folder, arguments).finish()

    def wait_for(self, what: Callable[[], T | None], command: Command | None = None, every: float = 0.1) -> T:
        """What `what` returns, once that is true. It is an error if the command ends before.

        Raises:
            TimeoutError: it did not come true.
        """
        deadline = time.monotonic() + SECONDS
        while not (found := what()):
            if time.monotonic() > deadline or (command is not None and command.over):
                ended = f"; the run ended before: {command.finish().err}" if command and command.over else ""
                raise TimeoutError(f"what was waited for did not happen{ended}")
            time.sleep(every)
        return found

    def in_training(self, command: Command) -> None:
        """Return once a checkpoint of the training is kept, which is far from its end."""

        def kept() -> list[str]:
            return [key for key in self.store.list("lineages") if key.endswith("/MANIFEST.json")]

        self.wait_for(kept, command)

    def job(self, stage: str, command: Command) -> dict[str, Any]:
        """The job of a stage, as soon as there is one."""

        def found() -> dict[str, Any] | None:
            return next((job for job in self.batch.jobs() if f"-{stage}-" in job["jobName"]), None)

        return self.wait_for(found, command)

    def workers(self, stage: str) -> list[int]:
        """The worker processes of a stage, by their rank."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
                variables = (place / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or belongs to another user
                continue
            ours = any(self.uri.encode() in word for word in words)
            rank = next((int(one[5:]) for one in variables if one.startswith(b"RANK=")), None)
            if ours and b"tasks.worker" in words and stage.encode() in words and rank is not None:
                found.append((rank, int(place.name)))
        return [pid for _, pid in sorted(found)]

    def cancel_flow_run(self) -> None:
        """What `prefect flow-run cancel` does with the one that runs now."""
        entry = json.loads((self.world.home / "server.json").read_text())
        api = f"http://127.0.0.1:{entry['port']}/api/flow_runs"
        wanted = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}, "sort": "START_TIME_DESC"}
        password = prefect_password.read(self.world.home) or ""
        newest = _post(f"{api}/filter", wanted, password)[0]
        _post(f"{api}/{newest['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}}, password)

    @property
    def seconds(self) -> float:
        """Since the first run was started."""
        return time.monotonic() - self._started

    def attempts(self) -> list[dict[str, Any]]:
        """The ledger's records, from `millrace report`, of the attempts that began in this scene."""
        records: list[dict[str, Any]] = self.millrace("report", "--workspace", self.uri, "--json").json["ledger"]
        return [record for record in records if record["started_at"] >= self.began]

    def left_live(self) -> list[str]:
        """The containers that have not ended after some time."""
        deadline = time.monotonic() + GRACE_SECONDS
        while live := [f"{one.name} on {one.host}" for one in self.batch.lives() if one.stopped is None]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        return live

    def weights(self) -> str:
        """Checksum of the weights of the released model's checkpoint."""
        release = json.loads(self.store.read("releases/1.json"))
        files = read_manifest(self.store, release["model"]["checkpoint"]["prefix"]).files
        return next(entry.sha256 for entry in files if entry.name == "model.safetensors")

    def half_written(self) -> list[str]:
        """Folders that should have a manifest, and have none."""
        keys = self.store.list("")
        depths = {"spans": 3, "lineages": 3, "models": 2, "vectors": 3}
        parts = [key.split("/") for key in keys]
        folders = {"/".join(one[: depths[one[0]]]) for one in parts if len(one) > depths.get(one[0], 99)}
        return sorted(folder for folder in folders if f"{folder}/MANIFEST.json" not in keys)


def _post(url: str, document: Any, password: str) -> Any:
    known = base64.b64encode(password.encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {known}"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
