"""A scene on this machine, whose command is a shell script: what is found to be killed, and what is left over."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tests.benchmarks.disturbed import command, local
from tests.benchmarks.disturbed.command import processes
from tests.benchmarks.disturbed.local import MARK, LocalScene, LocalWorld
from tests.benchmarks.disturbed.world import MONTHS
from tests.support.processes.command import CommandResult

# A word of the worker's command line makes it one. It starts no process: until a shell's child has
# become its command, it has the command line of the shell. All else is done before `started` is there.
SCRIPT = f"""#!/bin/sh
"{sys.executable}" -I -c 'import time; time.sleep(60)' -m tasks.worker "$@" &
echo said
touch "$MILLRACE_CHAOS_FOLDER/started"
sleep 60
"""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalScene]:
    monkeypatch.setattr(command, "MILLRACE", tmp_path / "millrace")
    monkeypatch.setattr(local, "END_SECONDS", 0.0)
    (tmp_path / "millrace").write_text(SCRIPT)
    (tmp_path / "millrace").chmod(0o755)
    world = object.__new__(LocalWorld)
    world.folder, world.home, world.scratch, world.earlier = tmp_path, tmp_path, tmp_path / "tmp", frozenset({"first"})
    world.scenes, world.kept = set(), []
    world.scratch.mkdir()
    scene = LocalScene(world, tmp_path / "run-1")
    yield scene
    scene.close(keep=True)  # a test that fails leaves no command and no open file to the next


def test_what_a_killed_command_leaves_is_found_and_ended(scene: LocalScene, tmp_path: Path) -> None:
    run = scene.start()
    while not (tmp_path / "run-1" / "started").exists():
        time.sleep(0.01)
    while not (workers := scene.workers()):  # the shell has forked, but may not have become the worker yet
        time.sleep(0.01)
    (worker,) = workers
    run.send(signal.SIGKILL)
    ended = run.finish()
    assert (ended.code, ended.out) == (-signal.SIGKILL, "said\n")
    (scene.root / "models").mkdir(parents=True)
    (scene.root / "models" / ".tmp-7").touch()
    (tmp_path / "tmp" / "millrace-attempt-7").mkdir()
    left = scene.left_over()
    assert f"process {worker} goes on" in left
    assert any(line.startswith("models/.tmp-7 ") for line in left)
    assert any(line.startswith("millrace-attempt-7 ") for line in left)
    with scene.store.lock("lineages/main.run"):
        assert any("lineages/main.run " in each for each in scene.left_over())
    scene.close(keep=False)
    assert not (tmp_path / "run-1").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    wait_for_the_end(tmp_path / "run-1")


def wait_for_the_end(files: Path) -> None:
    while any(one.variables.get(MARK) == str(files) for one in processes()):
        time.sleep(0.01)


def test_an_interrupted_campaign_leaves_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scene: LocalScene) -> set[Stage]:
        while not (tmp_path / "chaos" / "undisturbed" / "started").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "MILLRACE", tmp_path / "millrace")
    monkeypatch.setattr(LocalScene, "begun", interrupted)
    (tmp_path / "millrace").write_text(f'#!/bin/sh\ncase "$*" in *{MONTHS[0]}*) exit 0 ;; esac\n{SCRIPT}')
    (tmp_path / "millrace").chmod(0o755)
    with pytest.raises(KeyboardInterrupt):
        LocalWorld(tmp_path / "chaos", print)
    wait_for_the_end(tmp_path / "chaos" / "undisturbed")


def test_a_stage_has_begun_with_its_first_attempt_in_the_run_that_is_disturbed(scene: LocalScene) -> None:
    scene.store.write("runs/first/train/attempt-1/ledger.json", b"")
    assert scene.begun() == set()
    scene.store.write("runs/second/train/attempt-1/ledger.json", b"")
    assert scene.begun() == {Stage.train}


def test_a_copy_that_comes_after_its_stage_is_made_again(scene: LocalScene, tmp_path: Path) -> None:
    """Its release had a number already, so the disturbed run would get the next one."""
    before, tries = tmp_path / "before", iter(["result.json", "spec.json"])

    def copied(base: LocalScene) -> CommandResult:
        for stage in ("validate", "release"):
            DirectoryStore(before / stage).write(f"runs/first/{stage}/result.json", b"")
        DirectoryStore(before / "release").delete("runs/second")
        DirectoryStore(before / "release").write(f"runs/second/release/{next(tries)}", b"")
        return CommandResult(0, "", "")

    scene.store.write("releases/2.json", b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.world, "_copied", copied)
        assert scene.world.run_last(scene).code == 0
    assert list(tries) == []
    assert scene.store.list("") == ["runs/first/validate/result.json"]
    assert DirectoryStore(before / "release").list("") == ["runs/first/release/result.json"]


def test_files_falter_for_as_long_as_the_switch_is_there(scene: LocalScene, tmp_path: Path) -> None:
    switch = tmp_path / "run-1" / "faltering"
    scene.falter("disk-full")
    assert str(switch.readlink()) == "disk-full"
    scene.recover()
    assert not switch.is_symlink()
