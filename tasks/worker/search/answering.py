"""A process that answers a command on its standard output, as records in lines of JSON; errors go to standard error."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from tasks.foundation.errors import POLICIES, classify
from tasks.foundation.garbage import collect_rarely
from tasks.foundation.records import Record
from tasks.worker.process.sigterm import die_with_parent
from tasks.worker.process.threads import QUIET

Answering = Callable[[Record], None]


def answer(work: Callable[[Answering], None]) -> NoReturn:
    """Do the work, which gets a function that prints a record, and end the process with the exit code of its class."""
    os.environ.update(QUIET)
    collect_rarely()
    die_with_parent()
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    code = 0
    try:
        work(lambda record: print(record.model_dump_json(), file=answers, flush=True))
    except Exception as error:
        print(f"{error}" or type(error).__name__, file=sys.stderr, flush=True)
        code = POLICIES[classify(error)].exit_code
    sys.stderr.flush()
    os._exit(code)  # threads of libraries must not delay the end
