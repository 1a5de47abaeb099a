"""Each worker's share of its machine's cores, told to OpenMP before anything loads it.

Left to the scheduler, two threads of one worker at times stay on one core: steps then take several times as long.
"""

from __future__ import annotations

import os


def bind_threads() -> None:
    """Give this worker its cores, and each of its threads one of them.

    OpenMP's runtime reads the environment once, when it is loaded: this comes before the import of torch.
    """
    os.environ.update(_variables(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _variables(local_rank: int, workers: int) -> dict[str, str]:
    """OpenMP's variables for one of `workers` processes on the cores that this process may use."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    own = [cores[(local_rank * share + number) % len(cores)] for number in range(share)]
    places = ",".join(f"{{{core}}}" for core in own)
    return {"OMP_NUM_THREADS": str(share), "OMP_PROC_BIND": "true", "OMP_PLACES": places}
