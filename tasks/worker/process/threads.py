"""Threads and memory settings of a worker process, set before anything loads OpenMP.

Each worker gets its share of the machine's cores, and each thread is bound to one. Left to the scheduler, two threads
sometimes stay on one core, and steps take several times as long.
"""

import ctypes
import os
import pwd

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # malloc.h


def keep_freed_memory(in_all_threads: bool = False) -> None:
    """Make the C library keep large freed blocks instead of returning them to the kernel.

    A training step allocates and frees the same tens of megabytes again and again; by default glibc maps and
    unmaps them, and the step pays for the page faults.

    Args:
        in_all_threads: for XLA, which allocates in its own threads: make all threads share glibc's first arena, the
            only one with these settings. Call this before other threads start.
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
    """Set USER if the machine has no name for this process's user id, as in an image built for another user.

    torch and other libraries ask for the name, to name their folders, and fail without one.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", f"user-{os.getuid()}")


THREADS = "OMP_NUM_THREADS"
BINDING = ("OMP_PROC_BIND", "OMP_PLACES")


def bind_threads(accelerator: str) -> None:
    """Bind each thread of this worker to a core of its own. Call this before torch is imported, which loads OpenMP.

    With the accelerator `xla` only the number of threads is set: OpenMP would bind the main thread to one core, which
    compilers, runtimes and their threads would inherit. OMP_THREAD_LIMIT, if set, limits the threads on a machine that
    others use too, and no thread is bound.
    """
    variables = _variables(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    os.environ.update(variables)
    if accelerator == "xla":
        forget_binding()


def forget_binding() -> None:
    """Remove the binding from the environment once torch has read it.

    scikit-learn has its own OpenMP. Loaded in a thread that is already bound to one core, it would warn that the other
    cores of OMP_PLACES can't be used.
    """
    for name in BINDING:
        os.environ.pop(name, None)


def _variables(local_rank: int, workers: int) -> dict[str, str]:
    """Return OpenMP's variables for one of `workers` processes that share the cores of this process."""
    if limit := os.environ.get("OMP_THREAD_LIMIT"):
        return {THREADS: limit}
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return {THREADS: str(max(1, (os.cpu_count() or 1) // workers))}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    own = [cores[(local_rank * share + number) % len(cores)] for number in range(share)]
    places = ",".join(f"{{{core}}}" for core in own)
    return {THREADS: str(share), "OMP_PROC_BIND": "true", "OMP_PLACES": places}
