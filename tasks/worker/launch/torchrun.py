"""torchrun as a child of the launcher: `python -m tasks.worker.launch.torchrun OPTIONS`, with torchrun's own options.

Unlike `python -m torch.distributed.run` it dies with the launcher, and tells it how each worker ended through a pipe
instead of a table in the log. This is the only part of the launcher that loads torch.
"""

from __future__ import annotations

import os
import signal
import sys

from pydantic import Field

from tasks.errors import classify
from tasks.records import Record
from tasks.worker.parent import die_with_the_runner
from tasks.worker.stop import RUNNER_PID

REPORT = "MILLRACE_REPORT"  # set by the launcher: file descriptor of the pipe's end
MESSAGE_CHARACTERS = 4000


class AgentReport(Record):
    """What torchrun knows when it ends: exit codes by global rank of the workers that failed, or what it failed at."""

    codes: dict[int, int] = Field(default={})
    failure: str = ""
    message: str = ""


def main(options: list[str]) -> int:
    """Run the workers to their end; returns torchrun's exit code."""
    with os.fdopen(int(os.environ.pop(REPORT)), "wb") as report:
        os.set_inheritable(report.fileno(), False)
        die_with_the_runner()
        os.environ[RUNNER_PID] = str(os.getpid())  # of the workers, from now on
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import parse_args, run

        try:
            run(parse_args(options))
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            report.write(AgentReport(codes=codes).to_json())
            return 1
        except SignalException as told:
            return 128 + told.sigval
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS]
            report.write(AgentReport(failure=classify(error).value, message=message).to_json())
            return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has ended; torchrun's handler would turn that into a failure
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
