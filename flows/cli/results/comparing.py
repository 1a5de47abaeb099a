"""`millrace diff`: what changed from one release to another, found by a worker that opens both."""

import subprocess
import sys

from flows.cli.results.worker_process import failure_of
from flows.cli.terminal import console
from flows.presentation import terminal
from flows.presentation.changes import changes_section
from infra.store.base import Store
from tasks.contracts.search import Changes
from tasks.foundation.errors import ConfigError
from tasks.runs import releases
from tasks.runs.plan import read_plan


def compare(store: Store, before: int | None, after: int | None) -> Changes:
    """Compare two releases; by default the current one with the one before it.

    Raises:
        ConfigError: there are no two such releases, or one was made before releases held all items.
        StoreError: a release, a model or vectors are not there or damaged; names the file.
    """
    later = releases.current(store) if after is None else releases.read(store, after)
    number = later.previous if before is None and later is not None else before
    if later is None or number is None:
        raise ConfigError(f"{store.uri} has no two releases to compare; list them with: millrace releases")
    earlier = releases.read(store, number)
    for release in (earlier, later):
        if release.catalogue is None:
            raise ConfigError(f"release {release.number} was made before releases held all items with their texts")
    config = read_plan(store, later.run_key).config
    command = [sys.executable, "-P", "-m", "tasks.worker.search.diff", "--workspace", store.uri]
    records = (earlier, later, config)  # too long for arguments
    said = "".join(record.model_dump_json(by_alias=True) + "\n" for record in records)
    done = subprocess.run(command, input=said, capture_output=True, text=True)
    if done.returncode:
        raise failure_of(done.returncode, done.stderr)
    return Changes.model_validate_json(done.stdout)


def show(changes: Changes) -> None:
    """Print the comparison for people."""
    console.show(terminal.render(changes_section(changes), ""))
