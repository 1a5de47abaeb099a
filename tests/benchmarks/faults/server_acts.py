"""How the Prefect server is taken away from a run in a scene; returns how the last command ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from infra import prefect_server
from infra.prefect_server import Server
from tasks.foundation.errors import POLICIES, FailureClass
from tests.benchmarks.disturbed.cloud import CloudScene as Scene
from tests.benchmarks.disturbed.command import Command
from tests.support.processes.command import CommandResult

START_SECONDS = 120.0  # the longest that a server takes
LONGEST_SECONDS = 120.0  # from the end of the stage to that of a command whose server stays away


def server_away(stage: str, seconds: float) -> Callable[[Scene], CommandResult]:
    """A Prefect server that `millrace` does not own is killed in a stage, and is back after a while."""

    def act(scene: Scene) -> CommandResult:
        server, command = _without_server(scene, stage)
        time.sleep(seconds)
        prefect_server.restart(server, START_SECONDS)
        return command.finish()

    return act


def server_gone(stage: str) -> Callable[[Scene], CommandResult]:
    """It is not back when the command gives up, which says so; it is when the command is run again."""

    def act(scene: Scene) -> CommandResult:
        server, command = _without_server(scene, stage)
        scene.wait_for(lambda: scene.batch.jobs()[-1]["status"] == "SUCCEEDED")
        began = time.monotonic()
        gone = command.finish()
        waited = time.monotonic() - began
        assert gone.code == POLICIES[FailureClass.SERVER].exit_code, f"it ended with {gone.code}: {gone.err}"
        assert "run the same command" in gone.err, gone.err
        assert waited < LONGEST_SECONDS, f"it ended only {waited:.0f} s after the stage"
        prefect_server.restart(server, START_SECONDS)
        return scene.run()

    return act


def own_server_killed(scene: Scene) -> CommandResult:
    command = scene.start()
    scene.in_training(command)
    _kill(scene)
    return command.finish()


def _without_server(scene: Scene, stage: str) -> tuple[Server, Command]:
    """Begin the run with a server that is not its own, and kill that server in a stage."""
    server = prefect_server.up(scene.world.home)
    command = scene.start(PREFECT_API_URL=server.url)
    scene.job(stage, command)
    _kill(scene)
    return server, command


def _kill(scene: Scene) -> None:
    group = scene.server()
    assert group is not None
    os.killpg(group, signal.SIGKILL)
