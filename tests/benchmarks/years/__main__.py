"""What a workspace of years costs those who read it: requests, seconds and memory of each command.

    python -m tests.benchmarks.years [--weeks 156] [--refreshes 167] [--delay 5] [--keep]

Each command is the installed one in a process of its own, so its seconds have Python's start and all imports in them.
The bucket is on this machine; every request waits for some milliseconds, as on a network.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.data.span_versions import note_all
from tasks.monitoring.work_sums import sum_up_lost
from tasks.runs import releases
from tasks.runs.snapshot import Snapshot, pack_runs
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.years.bucket import Bucket, serve
from tests.benchmarks.years.workspace import PREFIX, REFRESHES, fill

COMMANDS = {
    "status": ("status", "--json"),
    "freshness": ("freshness", "--json"),
    "history": ("history", "--json"),
    "metrics": ("history", "--prometheus", "-"),
    "ledger": ("history", "--ledger", "--json"),
}
MOST_REQUESTS, MOST_SECONDS, MOST_MIB = 200, 2.0, 500


def main() -> None:
    """Measure and print, and fail if a command takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weeks", type=int, default=156)
    parser.add_argument("--refreshes", type=int, default=REFRESHES, help="after each run")
    parser.add_argument("--delay", type=float, default=5.0, help="milliseconds of each request")
    add_keep(parser)
    asked = parser.parse_args()
    logging.disable()  # what the stages say
    bucket = Bucket()
    fill(bucket, asked.weeks, asked.refreshes)
    server = serve(bucket)
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x",
        AWS_DEFAULT_REGION="us-east-1",
    )  # fmt: skip
    packed(open_store(f"s3://bucket/{PREFIX}"))
    bucket.delay_seconds = asked.delay / 1000
    with measuring("years", asked.keep) as sheet:
        filled = f"{asked.weeks} runs, {asked.weeks * asked.refreshes:,} refreshes, {len(bucket):,} objects"
        sheet.table(filled, "requests", "seconds", "of the processor", "MiB")
        for name, arguments in COMMANDS.items():
            _measure(sheet, bucket, name, arguments)
    if asked.refreshes == REFRESHES and sheet.missed:
        sys.exit(f"more than {MOST_REQUESTS} requests, {MOST_SECONDS} s or {MOST_MIB} MiB")


def packed(store: Store) -> None:
    """Pack what is over, as the runs and refreshes of these years would have done; this takes most of the time."""
    note_all(store)
    pack_runs(store)
    made = [release.number for release in Snapshot(store).releases_of_runs.values()]
    sum_up_lost(store, made, releases.last(store))


def _measure(sheet: Sheet, bucket: Bucket, name: str, arguments: tuple[str, ...]) -> None:
    bucket.requests.clear()
    command = [str(Path(sys.executable).with_name("millrace")), *arguments, "--workspace", f"s3://bucket/{PREFIX}"]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    mib = 0.0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        mib = max(mib, _peak_mib(process.pid))
        time.sleep(0.01)
    seconds, (_, status, used) = time.monotonic() - begun, ended
    if status:
        sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    requests = len(bucket.requests)
    good = requests <= MOST_REQUESTS and seconds <= MOST_SECONDS and mib <= MOST_MIB
    sheet.row(name, requests, seconds, used.ru_utime + used.ru_stime, mib, good=good)


def _peak_mib(pid: int) -> float:
    """Return the most memory that a process has had; what the kernel counts for its parent includes this one's."""
    with contextlib.suppress(OSError, ProcessLookupError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


if __name__ == "__main__":
    main()
