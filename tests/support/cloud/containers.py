"""Containers that do what a test says, on the emulator of AWS Batch, and start at once.

A `sitecustomize.py` on their PYTHONPATH runs the workspace's `container.py` in place of the launcher, and does only
part of its work: it counts tries, claims the attempt, writes failures. Without that file the real launcher runs.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from infra.store.directory import DirectoryStore

_SITE = """\
import json, os, sys, time

workspace, _, key = sys.orig_argv[-1].partition("#")
body = os.path.join(workspace, "container.py")

def stand_in():
    number = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
    node = int(os.environ.get("AWS_BATCH_JOB_NODE_INDEX", "0"))
    index = os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX")
    job = os.environ["AWS_BATCH_JOB_ID"].split("#")[0].split(":")[0]
    submitted = os.path.dirname(os.path.join(workspace, key))
    stage, _, first = submitted.rpartition("/attempt-")
    attempt = f"{stage}/attempt-{int(first) + number - 1}"
    os.makedirs(attempt, exist_ok=True)

    def say(text):
        print(text, flush=True)

    def progress(done, total):
        say("@progress " + json.dumps({"what": "steps", "done": done, "total": total}))

    def wait_for(name):
        while not os.path.exists(os.path.join(submitted, name)):
            time.sleep(0.01)

    def fail(failure, message, code):
        name = "ending.json" if index is None else f"ending-{index}.json"
        with open(os.path.join(attempt, name), "w") as file:
            json.dump({"failure": failure, "message": message, "node": node, "at": time.time()}, file)
        sys.exit(code)

    def own():
        path = os.path.join(submitted, "owner.json")
        staged = f"{path}.{os.getpid()}"
        with open(staged, "w") as file:
            json.dump({"job": job}, file)
        try:
            os.link(staged, path)
        except FileExistsError:
            if json.load(open(path))["job"] != job:
                sys.exit(76)
        finally:
            os.unlink(staged)

    if node == 0:
        own()
    exec(compile(open(body).read(), body, "exec"), {**globals(), **locals()})

if "tasks.worker.launch" in sys.orig_argv and os.path.exists(body):
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


def stand_in_environment(folder: Path) -> dict[str, str]:
    """For the image of the emulator's containers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder)}


def containers_do(store: DirectoryStore, body: str) -> None:
    """From now on, each container of a job on this workspace runs `body`.

    It finds `number` (of Batch's try), `node`, `index` (in an array, text or None), `job`, the folders `submitted` and
    `attempt`, and `say`, `progress`, `wait_for` (a file in `submitted`) and `fail(failure, message, exit code)`.
    """
    store.root.mkdir(parents=True, exist_ok=True)
    (store.root / "container.py").write_text(textwrap.dedent(body))
