"""Runs on AWS Batch and S3, both emulated on free ports of this machine, with a workspace in a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from infra import prefect_server
from infra.store.factory import open_store
from tasks.contracts.stages import Stage
from tests.benchmarks.disturbed.command import Command
from tests.benchmarks.disturbed.local import FALTERING, MARK, hooked
from tests.benchmarks.disturbed.world import MONTHS, Scene, World
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.s3 import Fault, S3Server
from tests.support.workspace.shop import SETTINGS

GRACE_SECONDS = 30.0  # from SIGTERM to SIGKILL, as on AWS
DELAY_SECONDS = 0.3
RUN, READER = "the-run", "a-reader"  # names that a client gives itself
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
_OUTAGE = 10_000  # requests, more than a run sends
_FAULTS = {
    "store-errors": [Fault(method, 503, "SlowDown") for method in _METHODS],
    "conflicts": [Fault("PUT", 409, "ConditionalRequestConflict")],
    "cut-off": [Fault(method, 503, "SlowDown", by=f"app/{RUN}") for method in _METHODS],
}
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


class CloudWorld(World):
    """One month, on two nodes for training and four jobs for inference."""

    name = "AWS Batch and S3, both emulated"
    whole_share = 0.2
    months = MONTHS[:1]

    def serve(self) -> CloudScene:
        self.config_file = self.folder / "shop.yaml"
        sections = {key: {**SETTINGS.get(key, {}), **changes} for key, changes in _CHANGED.items()}
        self.config_file.write_text(yaml.safe_dump({**SETTINGS, **sections, "compute": "batch"}))
        os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "none")
        os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        self.s3 = S3Server()
        self.services.callback(self.s3.stop)
        os.environ["AWS_ENDPOINT_URL"] = self.s3.url
        # Short, for the names of sockets in containers.
        self.scratch = Path(self.services.enter_context(tempfile.TemporaryDirectory(prefix="c-")))
        self.scratch.chmod(0o755)  # they run as other users
        os.environ["TMPDIR"] = str(self.scratch)
        containers = {MARK: str(self.scratch), "PYTHONPATH": hooked(FALTERING)}
        self.batch = BatchServer(containers, grace_seconds=GRACE_SECONDS, users=True)
        self.services.callback(self.batch.stop)
        os.environ |= dict.fromkeys(("AWS_ENDPOINT_URL_BATCH", "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS"), self.batch.url)
        self.batch.register_all()
        self._done = self.s3.new_workspace()
        return CloudScene(self, self._done, "undisturbed")

    def keep(self, base: Scene) -> None:
        self._before = self.s3.new_workspace()
        self._copy(self._done, self._before)

    def scene(self, name: str, stages: Sequence[Stage]) -> CloudScene:
        """Return a scene without what these stages made and without the release; no fault yet."""
        self.s3.forget()
        self.batch.forget()
        self.batch.forgive()
        self.batch.delay(scheduling=0.0, starting=0.0, joining=1.0, logs=0.0, timeout_scale=1.0)
        uri = self.s3.new_workspace()
        if tuple(stages) == tuple(Stage):
            self._copy(self._before, uri)
        else:
            self._copy(
                self._done, uri, "releases/", *(_MADE_BY[stage] for stage in stages if stage in _MADE_BY), of=stages
            )
        return CloudScene(self, uri, name, stages)

    def _copy(self, old: str, new: str, *left_out: str, of: Sequence[Stage] = ()) -> None:
        """Copy a workspace, without keys that begin with `left_out` and without the records of the stages `of`."""
        (old_bucket, old_prefix), (bucket, prefix) = (one.removeprefix("s3://").split("/", 1) for one in (old, new))
        for key in open_store(old).list(""):
            of_stage = key.split("/")[2] if key.startswith("runs/") else ""
            if not key.startswith((".locks/", *left_out)) and of_stage not in of:
                source = {"Bucket": old_bucket, "Key": f"{old_prefix}/{key}"}
                self.s3.client.copy_object(Bucket=bucket, Key=f"{prefix}/{key}", CopySource=source)


class CrowdedCloudWorld(CloudWorld):
    """Two months, of which the first is released; refreshes have jobs of the same stages as the run."""

    whole_share = 1.0
    months = MONTHS


class CloudScene(Scene):
    """A workspace in a bucket; its server knows the run and the readers by the names that their clients give."""

    world: CloudWorld
    look_seconds = 0.2  # the bucket serves one request at a time

    def __init__(self, world: CloudWorld, uri: str, name: str, stages: Sequence[Stage] = tuple(Stage)) -> None:
        super().__init__(world, open_store(uri), stages, world.folder / name)
        self.batch, self.s3 = world.batch, world.s3
        self._switch = world.scratch / "faltering"
        self._stopped: list[int] = []

    def start(self, *settings: str, span: str = "", **variables: str) -> Command:
        return super().start(*settings, span=span, AWS_SDK_UA_APP_ID=RUN, **variables)

    def reader(self, *words: str) -> Command:
        return self.command(*words, AWS_SDK_UA_APP_ID=READER)

    def changed_by_readers(self) -> list[str]:
        bucket = self.store.uri.split("/")[2]
        changes = {asked for agent, asked in self.s3.changes if f"app/{READER}" in agent and f"/{bucket}/" in asked}
        return sorted(f"a reader asked for {asked}" for asked in changes)

    def falter(self, how: str) -> None:
        if how == "store-delays":
            self.s3.delay_seconds = DELAY_SECONDS
        elif how == "disk-full":
            self._switch.symlink_to(how)
        else:
            self.s3.faults += _FAULTS[how] * _OUTAGE

    def recover(self) -> None:
        self._switch.unlink(missing_ok=True)
        self.s3.faults, self.s3.delay_seconds = [], 0.0

    def send_all(self, command: Command, number: signal.Signals) -> None:
        """Send a signal to the orchestrator and its running workers; SIGCONT reaches the workers stopped before."""
        command.send_all(number)
        if number is not signal.SIGCONT:
            self._stopped = self.workers()
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def left_over(self) -> list[str]:
        return [*self._live(), *self._jobs(), *self._twins(), *self.locks()]

    def close(self, keep: bool) -> None:
        super().close(keep)
        if keep:
            self.s3.copied(self.store.uri, self.files / "workspace")

    def job(self, stage: str, command: Command) -> dict[str, Any]:
        """Return the job of a stage, as soon as there is one."""

        def found() -> dict[str, Any] | None:
            return next((job for job in self.batch.jobs() if f"-{stage}-" in job["jobName"]), None)

        return self.wait_for(found, command)

    def in_training(self, command: Command) -> None:
        """Return once a checkpoint of the training is kept, which is far from its end."""

        def kept() -> list[str]:
            return [key for key in self.store.list("lineages") if key.endswith("/MANIFEST.json")]

        self.wait_for(kept, command)

    def cancel_flow_run(self) -> None:
        """Do as `prefect flow-run cancel` does with the one that runs now."""
        entry = json.loads((self.world.home / "server.json").read_text())
        api = f"http://127.0.0.1:{entry['port']}/api/flow_runs"
        user, _, password = str(prefect_server.read_password(self.world.home)).partition(":")
        wanted = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}, "sort": "START_TIME_DESC"}
        with httpx.Client(auth=(user, password), timeout=30) as client:
            newest = client.post(f"{api}/filter", json=wanted).json()[0]
            state = {"type": "CANCELLING", "name": "Cancelling"}
            client.post(f"{api}/{newest['id']}/set_state", json={"state": state}).raise_for_status()

    def _live(self) -> Iterator[str]:
        """Yield a sentence for each container that has not ended after some time."""

        def live() -> list[str]:
            return [f"{one.name} on {one.host}" for one in self.batch.lives() if one.stopped is None]

        deadline = time.monotonic() + GRACE_SECONDS
        while live() and time.monotonic() < deadline:
            time.sleep(0.2)
        yield from (f"container {name} is still live" for name in live())

    def _jobs(self) -> Iterator[str]:
        for job in self.batch.jobs():
            if job["status"] not in ("SUCCEEDED", "FAILED"):
                yield f"job {job['jobName']} is {job['status']}"

    def _twins(self) -> Iterator[str]:
        for stage in () if isinstance(self.world, CrowdedCloudWorld) else tuple(Stage):
            if (most := self.batch.max_live(f"*-{stage}-*")) > 1:
                yield f"{most} jobs of {stage} were live at once"
