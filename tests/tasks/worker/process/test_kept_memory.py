import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
CODE = """
import resource, sys, threading
from tasks.worker.process.threads import keep_freed_memory

def allocate_and_free():
    for _ in range(20):
        bytearray(100 * 2**20)

def page_faults_in_a_thread():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=allocate_and_free)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    keep_freed_memory(in_all_threads=True)
print(page_faults_in_a_thread())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such settings")
@pytest.mark.parametrize("kept", ["kept", "as glibc does"])
def test_what_a_thread_frees_is_used_again(kept: str):
    done = subprocess.run(
        [sys.executable, "-c", CODE, kept], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    pages = 100 * 2**20 // 4096
    assert (int(done.stdout) < 2 * pages) is (kept == "kept"), "each of 20 blocks has so many pages"
