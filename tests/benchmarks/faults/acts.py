"""How each fault is caused in a scene; returns how the last command ended. What is expected: cases.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator

from tests.benchmarks.disturbed.cloud import CloudScene as Scene
from tests.benchmarks.disturbed.command import Command
from tests.support.cloud.s3 import Fault
from tests.support.processes.command import CommandResult

TRAIN, INFER = "*-train-*", "*-infer-*"
OUTAGE_SECONDS = 10.0
DAY_SECONDS = 86400  # batch.attempt_seconds


def throttled(scene: Scene) -> CommandResult:
    with _outage(scene, lambda: scene.batch.throttle(times=None)):
        return scene.run()


def server_errors(scene: Scene) -> CommandResult:
    with _outage(scene, lambda: scene.batch.fail_calls(times=None)):
        return scene.run()


def submission_fails(scene: Scene) -> CommandResult:
    scene.batch.fail_calls("SubmitJob")
    return scene.run()


def reply_lost(scene: Scene) -> CommandResult:
    scene.batch.lose_reply("SubmitJob", times=len(scene.stages))
    return scene.run()


def job_invisible(scene: Scene) -> CommandResult:
    scene.batch.hide_jobs(5.0)
    return scene.run()


def reply_lost_and_job_invisible(scene: Scene) -> CommandResult:
    scene.batch.lose_reply("SubmitJob", times=len(scene.stages))
    return job_invisible(scene)


def no_machine(scene: Scene) -> CommandResult:
    scene.batch.hold_runnable(TRAIN)
    return scene.run("retry.attempts=1")


def machine_for_second_try(scene: Scene) -> CommandResult:
    scene.batch.hold_runnable(TRAIN)
    command = scene.start()
    first = scene.job("train", command)["jobId"]
    scene.wait_for(lambda: _status(scene, first) == "FAILED", command)
    scene.batch.release_runnable()
    return command.finish()


def main_host_lost(scene: Scene) -> CommandResult:
    return _host_lost(scene, 0)


def child_host_lost(scene: Scene) -> CommandResult:
    return _host_lost(scene, 1)


def every_host_lost(scene: Scene) -> CommandResult:
    for _ in range(3):
        scene.batch.kill_host(TRAIN, index=0, after=2.0)
    return scene.run("retry.attempts=3")


def inference_host_lost(scene: Scene) -> CommandResult:
    scene.batch.kill_host(INFER, index=2, after=3.0)
    result = scene.run()
    ran = [life.job.rpartition(":")[2] for life in scene.batch.lives(INFER)]
    assert sorted(ran) == ["0", "1", "2", "2", "3"], f"children of the array that ran: {ran}"
    return result


def worker_stands_still(scene: Scene) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    os.kill(scene.workers("train")[1], signal.SIGSTOP)
    return _resumed(scene, command.finish())


def time_is_up(scene: Scene) -> CommandResult:
    """The limit of a day lasts three seconds for the training, which takes longer to start."""
    scene.batch.hold_runnable(TRAIN)
    command = scene.start("retry.attempts=1")
    scene.job("train", command)
    scene.batch.scale_timeouts(3.0 / DAY_SECONDS)
    scene.batch.release_runnable()
    return command.finish()


def time_is_up_once(scene: Scene) -> CommandResult:
    scene.batch.hold_runnable(TRAIN)
    command = scene.start()
    first = scene.job("train", command)["jobId"]
    scene.batch.scale_timeouts(3.0 / DAY_SECONDS)
    scene.batch.release_runnable()
    scene.wait_for(lambda: _status(scene, first) == "FAILED", command)
    scene.batch.scale_timeouts(1.0)
    return command.finish()


def no_image(scene: Scene) -> CommandResult:
    scene.batch.fail_pull(TRAIN)
    return scene.run()


def out_of_memory(scene: Scene) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    scene.batch.out_of_memory(TRAIN, index=0)
    return command.finish()


def store_falters(scene: Scene) -> CommandResult:
    """Twice in a row at each place, now refused, now done without a reply that says so, now answered in half."""
    for about in ("spec.json", "job.json", "MANIFEST.json", "result.json"):
        scene.s3.faults += 2 * [Fault("GET", 500, about=about), Fault("PUT", 503, "SlowDown", about=about)]
    scene.s3.faults += [Fault("PUT", when="after", about=about) for about in ("job.json", "result.json", "owner.json")]
    scene.s3.faults += [Fault("GET", when="during", about="part-00000.parquet")]
    result = scene.run()
    assert not scene.s3.faults, f"never happened: {scene.s3.faults}"
    return result


def store_fails_training(scene: Scene) -> CommandResult:
    scene.s3.faults += 5 * [Fault("PUT", 503, "ServiceUnavailable", about="model.safetensors")]
    return scene.run()


def killed_in_training(scene: Scene) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    command.send(signal.SIGKILL)
    command.finish()
    return scene.run()


def sigterm(scene: Scene) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    command.send(signal.SIGTERM)
    return _resumed(scene, _cancelled_then_run_again(scene, command, "SIGTERM"))


def flow_run_cancelled(scene: Scene) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    scene.cancel_flow_run()
    return _resumed(scene, _cancelled_then_run_again(scene, command, "the flow run was cancelled"))


def killed_and_reaped(scene: Scene) -> CommandResult:
    scene.batch.hold_runnable(TRAIN)
    command = scene.start()
    job = scene.job("train", command)["jobId"]
    command.send(signal.SIGKILL)
    command.finish()

    def reaped() -> bool:
        where = ("--config", str(scene.world.config_file), "--workspace", scene.store.uri)
        result = scene.command("reap", *where, "--grace-minutes", "0", "--json").finish()
        return any((one["job"], one["action"]) == (job, "ended") for one in result.json["jobs"])

    scene.wait_for(reaped, every=3.0)
    assert _status(scene, job) == "FAILED", "the job goes on after its end was asked for"
    scene.batch.release_runnable()
    return scene.run()


def credentials_refused(scene: Scene) -> CommandResult:
    scene.batch.refuse_credentials()
    return scene.run()


def submission_denied(scene: Scene) -> CommandResult:
    scene.batch.deny("SubmitJob")
    return scene.run()


def no_queue(scene: Scene) -> CommandResult:
    return scene.run("batch.cpu_queue=nowhere")


def no_definition(scene: Scene) -> CommandResult:
    return scene.run("batch.definition=nowhere-{stage}")


def bucket_denied(scene: Scene) -> CommandResult:
    scene.s3.faults += [Fault(method, 403, "AccessDenied") for method in ("GET", "HEAD", "PUT", "POST")] * 100
    result = scene.run()
    scene.s3.forget()
    return result


@contextlib.contextmanager
def _outage(scene: Scene, begin: Callable[[], None]) -> Iterator[None]:
    """Lasts for OUTAGE_SECONDS from the first call on that it hits."""
    begin()

    def end() -> None:
        while not scene.batch.calls():
            if left.wait(0.1):
                return
        left.wait(OUTAGE_SECONDS)
        scene.batch.forgive()

    left = threading.Event()
    ender = threading.Thread(target=end, daemon=True)
    ender.start()
    try:
        yield
    finally:
        left.set()
        ender.join()


def _cancelled_then_run_again(scene: Scene, command: Command, why: str) -> CommandResult:
    """Wait for the first command, which says why it ended and leaves nothing behind, and run it again."""
    stopped = command.finish()
    assert stopped.code == 76, f"the run that was stopped ended with {stopped.code}: {stopped.err}"
    assert why in stopped.err, stopped.err
    assert not [life for life in scene.batch.lives() if life.stopped is None], "its job goes on"
    return scene.run()


def _host_lost(scene: Scene, node: int) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    scene.batch.kill_host(TRAIN, index=node)
    return _resumed(scene, command.finish())


def _resumed(scene: Scene, result: CommandResult) -> CommandResult:
    """Check that the training went on from a checkpoint."""
    for key in scene.store.list("runs"):
        if key.endswith("/train/result.json"):
            assert json.loads(scene.store.read(key))["outcome"]["resumed_at_step"], "the training started over"
    return result


def _status(scene: Scene, job: str) -> str:
    return next(one["status"] for one in scene.batch.jobs() if one["jobId"] == job)
