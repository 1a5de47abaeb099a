"""Threads and memory settings of a worker process, set before anything loads OpenMP.

Each worker gets its share of the machine's cores, and each thread of OpenMP is bound to one. Left to the scheduler, two
threads sometimes stay on one core, and steps take several times as long.
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
    "DO_NOT_TRACK": "1",
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
# Turns of the loop in which a thread of GNU's OpenMP waits for the others before it sleeps; by default 300,000, some
# milliseconds. Beside other work the others often have no core then, and the wait takes one from them
# (docs/decisions/processors.md).
WAIT = {"GOMP_SPINCOUNT": "10000"}
_own_cores: set[int] = set()  # this worker's, once its threads are bound


def bind_threads(accelerator: str) -> None:
    """Bind each thread of this worker to a core of its own. Call this before torch is imported, which loads OpenMP.

    With another accelerator than `cpu` only the number of threads is set: OpenMP would bind the main thread to one
    core, which compilers, runtimes, and the threads that make batches would inherit. There all cores tokenise too,
    because one can't keep up with the device. OMP_THREAD_LIMIT, if set, limits the threads on a machine that others
    use too, and no thread is bound.
    """
    rank, workers = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own = _share_of_cores(rank, workers)
    os.environ.update(_variables(own, workers))
    if accelerator != "cpu":
        forget_binding()
        os.environ.update({"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": os.environ[THREADS]})
    elif BINDING[0] in os.environ:
        _own_cores.update(own)


def own_cores() -> set[int]:
    """Return the cores that this worker may use, at most OMP_THREAD_LIMIT of them; empty if not on Linux."""
    cores = sorted(_own_cores or (os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()))
    return set(cores[: int(os.environ.get("OMP_THREAD_LIMIT") or len(cores))])


def use_own_cores() -> None:
    """Let the calling thread run on all cores of this worker; a thread inherits the one core of its bound starter."""
    if _own_cores:
        os.sched_setaffinity(0, _own_cores)


def forget_binding() -> None:
    """Remove the binding from the environment once torch has read it.

    scikit-learn has its own OpenMP. Loaded in a thread that is already bound to one core, it would warn that the other
    cores of OMP_PLACES can't be used.
    """
    for name in BINDING:
        os.environ.pop(name, None)


def _share_of_cores(local_rank: int, workers: int) -> list[int]:
    """Return the cores of one of `workers` processes that share the cores of this process; empty if not on Linux."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    return [cores[(local_rank * share + number) % len(cores)] for number in range(share)]


def _variables(cores: list[int], workers: int) -> dict[str, str]:
    """Return OpenMP's variables for a worker with these cores."""
    if limit := os.environ.get("OMP_THREAD_LIMIT"):
        return {THREADS: limit}
    if not cores:
        return {THREADS: str(max(1, (os.cpu_count() or 1) // workers))}
    places = ",".join(f"{{{core}}}" for core in cores)
    own = {name: os.environ.get(name, turns) for name, turns in WAIT.items()}
    return {THREADS: str(len(cores)), BINDING[0]: "true", BINDING[1]: places, **own}
