"""Each worker's share of the cores of its machine, set for OpenMP before anything loads it.

If the scheduler chooses, two threads of one worker sometimes stay on one core: steps then take several times as long.
"""

import os

BINDING = ("OMP_PROC_BIND", "OMP_PLACES")


def bind_threads(accelerator: str) -> None:
    """Assign cores to this worker, one to each of its threads; `accelerator` is that of the configuration.

    Devices that compile get the number of threads alone. OpenMP binds the main thread too, as soon as it is loaded, and
    what that starts inherits its core: compilers, runtimes and their threads would all share a single one.
    OMP_THREAD_LIMIT, where it is set, allows fewer threads on a machine that others use too; they are bound to no core.
    OpenMP's runtime reads the environment once, when it is loaded: call this before torch is imported.
    """
    variables = _variables(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    os.environ.update(variables)
    if accelerator == "xla":
        forget_binding()


def forget_binding() -> None:
    """Remove the binding from the environment once torch has read it.

    scikit-learn brings an OpenMP of its own. It is loaded in a thread that is already bound to one core, and would warn
    that the other cores of OMP_PLACES can't be used.
    """
    for name in BINDING:
        os.environ.pop(name, None)


def _variables(local_rank: int, workers: int) -> dict[str, str]:
    """Return OpenMP's variables for one of `workers` processes, on the cores that this process may use."""
    if limit := os.environ.get("OMP_THREAD_LIMIT"):
        return {"OMP_NUM_THREADS": limit}
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    own = [cores[(local_rank * share + number) % len(cores)] for number in range(share)]
    places = ",".join(f"{{{core}}}" for core in own)
    return {"OMP_NUM_THREADS": str(share), "OMP_PROC_BIND": "true", "OMP_PLACES": places}
