"""Programs that run during a test, each in its own process group, and end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MILLRACE = Path(sys.executable).with_name("millrace")
# As PYTHONPATH: the stages of all flow runs have workers that do no arithmetic.
FAKE_WORKERS = os.pathsep.join([str(ROOT / "tests" / "support" / "fakes" / "site"), str(ROOT)])
WORKER = (sys.executable, "-m", "prefect", "worker", "start", "--pool", "millrace")
END_SECONDS = 20.0


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[None]:
    """Run a command during the block, its output in `log`; at the end nothing of its group is left."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads its own group
            process.wait()
