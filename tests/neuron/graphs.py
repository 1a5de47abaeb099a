"""The graphs of NeuronCores as files for neuronx-cc: `python -m tests.neuron.graphs FOLDER`, for `make check-neuron`.

The graphs of warmup and health of one worker of a trn1.32xlarge, for a small model; with a file for each level of
optimisation that holds the compiler's arguments.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from configs.load import load_config
from tasks.worker.devices.xla_environment import compiler_flags
from tests.support.processes.paper import CORES, Place, draw
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import make_workspace

LEVELS = (1, 2)
SUFFIX = ".hlo_module.pb"  # as in Neuron's own cache


def write_graphs(folder: Path) -> list[Path]:
    """Write the graphs and `arguments-O<level>` into an empty folder; return the files of the graphs."""
    for level in LEVELS:
        config = load_config(Path("configs/trainium.yaml"), [f"compiler.optlevel={level}"])
        (folder / f"arguments-O{level}").write_text(compiler_flags(config.compiler) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        store, rows = make_workspace(Path(scratch))
        run_ranks(1, draw, store.root, rows, [Place(CORES, 0)], folder)
    return sorted(folder.glob(f"*{SUFFIX}"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    print(f"{len(write_graphs(target))} graphs in {target}")
