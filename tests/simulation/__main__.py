"""`python -m tests.simulation`: interleavings (`playing`); as first word, `year`: 8,760 hours; `crash-points`: kills.

All begin in a new process: sets have one order there, as a seed needs, and no library asks the network for anything.
"""

import os
import sys

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "AWS_EC2_METADATA_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
OTHERS = {"crash-points": "crash_points", "year": "year"}
first = sys.argv[1] if len(sys.argv) > 1 else ""
module, words = (OTHERS[first], sys.argv[2:]) if first in OTHERS else ("playing", sys.argv[1:])
os.execve(sys.executable, [sys.executable, "-m", f"tests.simulation.{module}", *words], {**os.environ, **ENVIRONMENT})
