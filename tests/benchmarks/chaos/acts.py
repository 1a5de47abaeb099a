"""How each act is done to a running command."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.chaos.place import Running, Scene

POLL_SECONDS = 0.05


def strike(scene: Scene, running: Running, draw: Draw) -> bool:
    """Do the act of a draw, and undo what passes. Return False where the command ended before it could be done."""
    return not running.over and _ACTS[draw.act](scene, running, draw)


def _kill_orchestrator(scene: Scene, running: Running, draw: Draw) -> bool:
    running.send(signal.SIGKILL)
    return True


def _kill_all(scene: Scene, running: Running, draw: Draw) -> bool:
    running.send_all(signal.SIGKILL)
    return True


def _stop_all(scene: Scene, running: Running, draw: Draw) -> bool:
    running.send_all(signal.SIGSTOP)
    time.sleep(draw.seconds)
    running.send_all(signal.SIGCONT)
    return True


def _kill_worker(scene: Scene, running: Running, draw: Draw) -> bool:
    """Kill one of the workers; between two stages, one of the next."""
    while not running.over:
        if found := scene.workers():
            with contextlib.suppress(ProcessLookupError):  # it ended in this moment: take the next
                os.kill(found[int(draw.share * len(found))], signal.SIGKILL)
                return True
        time.sleep(POLL_SECONDS)
    return False


def _kill_server(scene: Scene, running: Running, draw: Draw) -> bool:
    return _send_to_server(scene, signal.SIGKILL)


def _stop_server(scene: Scene, running: Running, draw: Draw) -> bool:
    if not _send_to_server(scene, signal.SIGSTOP):
        return False
    time.sleep(draw.seconds)
    _send_to_server(scene, signal.SIGCONT)
    return True


def _falter(scene: Scene, running: Running, draw: Draw) -> bool:
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


_ACTS: dict[Act, Callable[[Scene, Running, Draw], bool]] = {
    Act.kill_orchestrator: _kill_orchestrator,
    Act.kill_worker: _kill_worker,
    Act.kill_all: _kill_all,
    Act.stop_all: _stop_all,
    Act.kill_server: _kill_server,
    Act.stop_server: _stop_server,
    Act.store_errors: _falter,
    Act.store_delays: _falter,
    Act.disk_full: _falter,
}
