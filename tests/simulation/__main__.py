"""`python -m tests.simulation`: interleavings (`playing`); with `crash-points` as first word: kills before each write.

Both begin in a new process: sets have one order there, as a seed needs, and no library asks the network for anything.
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
module, words = ("crash_points", sys.argv[2:]) if sys.argv[1:2] == ["crash-points"] else ("playing", sys.argv[1:])
os.execve(sys.executable, [sys.executable, "-m", f"tests.simulation.{module}", *words], {**os.environ, **ENVIRONMENT})
