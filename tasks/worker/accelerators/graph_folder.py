"""The folder of compiled graphs: on NeuronCores one for all workers of a machine, so that each graph is there once.

Neuron's compiler locks a graph while it compiles it, so workers that share a folder compile none twice.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tasks.worker.process.job import Rank

PREFIX = "millrace-graphs-"


def folder_of_machine(rank: Rank) -> Path:
    """Return the folder for all workers that torchrun started on this machine; torchrun lives for one attempt."""
    if rank.local_world == 1:
        return own_folder()
    return Path(tempfile.gettempdir()) / f"{PREFIX}{os.getuid()}-{os.getppid()}"


def own_folder() -> Path:
    """Return an empty folder for this process alone."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


class GraphFolder:
    """A worker's use of a folder of graphs; the last worker to leave removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # let go by the kernel if the process dies

    def leave(self) -> None:
        """Remove the folder, unless another worker uses it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(self._lock)
