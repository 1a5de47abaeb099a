"""Run a subprocess that prints records as JSON lines on standard output; errors go to standard error.

Alone, since each program of this folder is such a subprocess.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from tasks.foundation.errors import POLICIES, classify
from tasks.foundation.process import collect_rarely, speak_utf8
from tasks.foundation.records import Record
from tasks.worker.process.sigterm import die_with_parent
from tasks.worker.process.threads import QUIET

Answering = Callable[[Record], None]


def answer(work: Callable[[Answering], None]) -> NoReturn:
    """Call `work` with a function that prints a record, and end the process with 0 or the error's exit code."""
    os.environ.update(QUIET)
    collect_rarely()
    speak_utf8()
    die_with_parent()
    answers, sys.stdout = sys.stdout, sys.stderr  # keep prints of libraries out of the answers
    code = 0
    try:
        work(lambda record: print(record.model_dump_json(), file=answers, flush=True))
    except Exception as error:
        print(f"{error}" or type(error).__name__, file=sys.stderr, flush=True)
        code = POLICIES[classify(error)].exit_code
    sys.stderr.flush()
    os._exit(code)  # don't wait for threads of libraries
