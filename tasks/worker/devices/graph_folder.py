"""The folder of compiled graphs: on NeuronCores one for all workers of a machine, so that each graph is there once.

Neuron's compiler locks a graph while it compiles it, so workers that share a folder compile none twice.
"""

import os
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
