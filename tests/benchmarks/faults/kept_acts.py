"""Faults of a job that does several stages, around the hand-over; each returns the last command's end."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.benchmarks.disturbed.cloud import CloudScene as Scene
from tests.benchmarks.disturbed.command import Command
from tests.benchmarks.faults.acts import cancelled_then_run_again
from tests.support.cloud.s3 import Fault
from tests.support.processes.command import CommandResult

KEPT = "batch.keep_seconds=150"  # longer than a killed process holds its lineage


def undisturbed(scene: Scene) -> CommandResult:
    return scene.run(KEPT)


def host_lost(node: int) -> Callable[[Scene], CommandResult]:
    """The host of a node is lost once the job has begun its second stage."""

    def act(scene: Scene) -> CommandResult:
        command = scene.start(KEPT)
        _evaluates(scene, command)
        scene.batch.kill_host("*", index=node)
        return command.finish()

    return act


def host_lost_in_wait(scene: Scene) -> CommandResult:
    """The orchestrator stands still from the end of the first stage on, until the host is lost."""
    command = scene.start(KEPT)
    _waits(scene, command)
    command.send(signal.SIGSTOP)
    scene.batch.kill_host("*", index=0)
    command.send(signal.SIGCONT)
    return command.finish()


def killed_in_wait(scene: Scene) -> CommandResult:
    return _killed(scene, _waits)


def killed_after(scene: Scene) -> CommandResult:
    return _killed(scene, _evaluates)


def sigterm_after(scene: Scene) -> CommandResult:
    command = scene.start(KEPT)
    _evaluates(scene, command)
    command.send(signal.SIGTERM)
    return cancelled_then_run_again(scene, command, "SIGTERM", KEPT)


def killed_in_wait_and_reaped(scene: Scene) -> CommandResult:
    command = scene.start(KEPT)
    _waits(scene, command)
    command.send(signal.SIGKILL)
    command.finish()

    def reaped() -> bool:
        where = ("--config", str(scene.world.config_file), "--workspace", scene.store.uri)
        result = scene.command("reap", *where, "--grace-minutes", "0", "--json").finish()
        return any(one["action"] == "ended" for one in result.json["jobs"])

    scene.wait_for(reaped, every=3.0)
    return scene.run(KEPT)


def store_falters(scene: Scene) -> CommandResult:
    """Each file of the hand-over is refused twice, and once written without a reply that says so."""
    for about in ("finished.json", "next.json", "owner.json"):
        scene.s3.faults += [*2 * [Fault("PUT", 503, "SlowDown", about=about)], Fault("PUT", when="after", about=about)]
        scene.s3.faults += 2 * [Fault("GET", 500, about=about)]
    return scene.run(KEPT)


def _killed(scene: Scene, when: Callable[[Scene, Command], None]) -> CommandResult:
    command = scene.start(KEPT)
    when(scene, command)
    command.send(signal.SIGKILL)
    command.finish()
    return scene.run(KEPT)


def _waits(scene: Scene, command: Command) -> None:
    """Return once the job has recorded the end of its first stage."""
    scene.wait_for(
        lambda: [key for key in scene.store.list("runs") if key.endswith("train/attempt-1/finished.json")], command
    )


def _evaluates(scene: Scene, command: Command) -> None:
    """Return once the workers of the second stage run."""
    scene.wait_for(lambda: scene.workers("evaluate"), command)
