"""torchrun as a child of the launcher: `python -m tasks.worker.launch.torchrun OPTIONS`, with torchrun's own options.

Unlike `python -m torch.distributed.run` it dies with the launcher, and reports each worker's end through a pipe, not
as a table in the log. No other part of the launcher loads torch.
"""

import os
import signal
import sys

from pydantic import Field

from tasks.foundation.errors import classify
from tasks.foundation.records import Record
from tasks.worker.process.sigterm import RUNNER_PID, die_with_parent

REPORT = "MILLRACE_REPORT"  # set by the launcher: file descriptor of the pipe
MESSAGE_CHARACTERS = 4000


class AgentReport(Record):
    """torchrun's report at its end: exit codes of failed workers by global rank, or its own failure."""

    codes: dict[int, int] = Field(default={})
    failure: str = ""
    message: str = ""


def main(options: list[str]) -> int:
    """Run the workers to their end; return torchrun's exit code."""
    with os.fdopen(int(os.environ.pop(REPORT)), "wb") as report:
        os.set_inheritable(report.fileno(), False)
        die_with_parent()
        os.environ[RUNNER_PID] = str(os.getpid())  # from now on the workers' runner
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import parse_args, run

        try:
            run(parse_args(options))
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            report.write(AgentReport(codes=codes).to_json())
            return 1
        except SignalException as stop:
            return 128 + stop.sigval
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS]
            report.write(AgentReport(failure=classify(error).value, message=message).to_json())
            return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # The work is done: torchrun's handler would turn the signal into a failure.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
