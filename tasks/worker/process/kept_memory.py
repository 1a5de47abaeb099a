"""Memory that a process frees stays with it: a training step allocates and frees the same blocks again and again."""

import ctypes

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
