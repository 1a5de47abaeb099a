"""Jobs of several stages on the emulator: the real launchers, with a script in the place of torchrun and its workers.

A `sitecustomize.py` on the containers' PYTHONPATH runs the workspace's `workers.py` in place of torchrun.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from infra.store.directory import DirectoryStore

_SITE = """\
import json, os, sys, time

def stand_in():
    workspace, key, _ = sys.orig_argv[-1].split("#")
    attempt = os.path.dirname(os.path.join(workspace, key))
    spec = json.load(open(os.path.join(workspace, key)))
    stage, number = spec["inputs"]["stage"], spec["attempt"]
    node = int(next(word for word in sys.orig_argv if word.startswith("--node-rank=")).partition("=")[2])

    def say(text):
        print(text, flush=True)

    def wait_for(name):
        while not os.path.exists(os.path.join(workspace, name)):
            time.sleep(0.01)

    def fail(failure, message, code):
        record = {"rank": node, "at": time.time(), "failure": failure, "message": message}
        record |= {"traceback": "", "phases": {}}
        with open(os.path.join(attempt, f"error-rank{node}.json"), "w") as file:
            json.dump(record, file)
        sys.exit(code)

    say(f"{stage} {number} begins")
    exec(open(os.path.join(workspace, "workers.py")).read(), {**globals(), **locals()})
    say(f"{stage} {number} ends")

if "tasks.worker.launch.torchrun" in sys.orig_argv:
    code = 0
    try:
        stand_in()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        print(repr(error))
        code = 1
    sys.stdout.flush()
    os._exit(code)
"""


def scripted_environment(folder: Path) -> dict[str, str]:
    """For the image of the emulator's containers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder)}


def workers_do(store: DirectoryStore, body: str) -> None:
    """From now on, the workers of each node of a job on this workspace run `body`.

    It finds `stage`, `number` (of the attempt), `node`, and `say`, `wait_for` (a file of the workspace) and
    `fail(failure, message, exit code)`.
    """
    store.write("workers.py", textwrap.dedent(body).encode())
