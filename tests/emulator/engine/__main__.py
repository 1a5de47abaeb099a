"""The emulator as a process: one line of JSON with its URL once it serves; SIGTERM ends it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading

from tests.emulator.engine.records import Settings
from tests.emulator.engine.server import Emulator


def main() -> None:
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.engine", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0: any that is free")
    parser.add_argument("--grace-seconds", type=float, default=defaults.grace_seconds, help="from SIGTERM to SIGKILL")
    parser.add_argument("--slots", type=int, default=defaults.slots, help="containers at once")
    parser.add_argument("--users", action="store_true", help="containers run as the users that definitions name")
    parser.add_argument("--whole-machine", action="store_true", help="do not bind each container to one core")
    parser.add_argument("--image", type=json.loads, default={}, help="variables that the images have in addition, JSON")
    parser.add_argument("--while-stdin-open", action="store_true", help="end when standard input closes")
    options = parser.parse_args()
    emulator = Emulator(
        options.port,
        Settings(options.grace_seconds, options.slots, options.users, options.whole_machine, options.image),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=emulator.stop).start())
    if options.while_stdin_open:
        threading.Thread(target=_stop_at_end_of_input, args=(emulator,), daemon=True).start()
    print(json.dumps({"url": emulator.url}), flush=True)
    emulator.http.serve_forever(poll_interval=0.05)
    emulator.stop()


def _stop_at_end_of_input(emulator: Emulator) -> None:
    sys.stdin.read()
    emulator.stop()


if __name__ == "__main__":
    main()
