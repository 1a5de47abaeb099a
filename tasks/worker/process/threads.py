"""The threads, libraries and memory of a worker's process, set before anything loads OpenMP.

Each worker has its share of the cores of its machine.

If the scheduler chooses, two threads of one worker sometimes stay on one core: steps then take several times as long.
"""

import ctypes
import os
import pwd

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # malloc.h


def keep_freed_memory(in_all_threads: bool = False) -> None:
    """Make the C library keep large freed blocks, and not return each one to the kernel.

    A training step allocates and frees the same tens of megabytes again and again; by default glibc maps and
    unmaps them, and the step pays for the page faults.

    Args:
        in_all_threads: for XLA, which allocates in threads of its own. The settings hold for glibc's first arena, so
            all threads share that one. Call this before there are other threads.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20))
        for parameter, value in (*settings, (M_ARENA_MAX, 1)) if in_all_threads else settings:
            libc.mallopt(parameter, value)


QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_TORCH_XLA": "0",  # transformers does not need it here, and importing it fixes the device
}


def name_user() -> None:
    """Set USER where the machine has no name for this process's user, as in an image that was made for another one.

    torch and others ask for the name, for folders of their own, and fail without one.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", f"user-{os.getuid()}")


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
