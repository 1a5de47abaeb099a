"""Each act, done to a running command."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.disturbed.command import Command
from tests.benchmarks.disturbed.world import Scene

POLL_SECONDS = 0.05


def strike(scene: Scene, command: Command, draw: Draw) -> bool:
    """Do the act of a draw, and undo what passes. Return False if the command ended before it could be done."""
    return not command.over and _ACTS.get(draw.act, _falter)(scene, command, draw)


def _kill_orchestrator(scene: Scene, command: Command, draw: Draw) -> bool:
    command.send(signal.SIGKILL)
    return True


def _kill_all(scene: Scene, command: Command, draw: Draw) -> bool:
    scene.send_all(command, signal.SIGKILL)
    return True


def _stop_all(scene: Scene, command: Command, draw: Draw) -> bool:
    scene.send_all(command, signal.SIGSTOP)
    time.sleep(draw.seconds)
    scene.send_all(command, signal.SIGCONT)
    return True


def _kill_worker(scene: Scene, command: Command, draw: Draw) -> bool:
    """Kill one of the workers, or of the processes that fork them; between two stages, one of the next."""
    while not command.over:
        if found := [*scene.workers(), *scene.forkers()]:
            with contextlib.suppress(ProcessLookupError):  # it ended in this moment: take the next
                os.kill(found[int(draw.share * len(found))], signal.SIGKILL)
                return True
        time.sleep(POLL_SECONDS)
    return False


def _kill_server(scene: Scene, command: Command, draw: Draw) -> bool:
    return _send_to_server(scene, signal.SIGKILL)


def _stop_server(scene: Scene, command: Command, draw: Draw) -> bool:
    if not _send_to_server(scene, signal.SIGSTOP):
        return False
    time.sleep(draw.seconds)
    _send_to_server(scene, signal.SIGCONT)
    return True


def _falter(scene: Scene, command: Command, draw: Draw) -> bool:
    scene.falter(draw.act)
    try:
        time.sleep(draw.seconds)
    finally:
        scene.recover()
    return True


def _send_to_server(scene: Scene, number: signal.Signals) -> bool:
    group = scene.server()
    if group is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
    return True


_ACTS: dict[Act, Callable[[Scene, Command, Draw], bool]] = {
    Act.kill_orchestrator: _kill_orchestrator,
    Act.kill_worker: _kill_worker,
    Act.kill_all: _kill_all,
    Act.stop_all: _stop_all,
    Act.kill_server: _kill_server,
    Act.stop_server: _stop_server,
}
