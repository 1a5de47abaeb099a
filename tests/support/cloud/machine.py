"""A machine of AWS that boots the orchestrator's user data: run here, with stand-ins for what such a machine has.

Real are bash, awk, install, mkdir, python3, wipefs and mkfs.ext4: a volume is a file with a file system. Its files are
in a folder beside it, to which `mount` makes a link. The folders of the user data are below the machine's own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

VOLUME_BYTES = 16 << 20
ROOTS = ("/srv", "/var/lib/cloud")
_TOOLS = ("chown", "cloud-init", "dnf", "lsblk", "mount", "mountpoint", "sleep", "systemctl", "systemd-run")
_STAND_IN = """#!/bin/bash
set -eu
cd {folder}
echo "${{0##*/}} $*" >> calls
case "${{0##*/}} $*" in
"cloud-init query instance_id") echo {name} ;;
"lsblk --nodeps --noheadings --paths --output NAME,SERIAL") cat disks ;;
"dnf install -y docker") mv later/docker bin/docker ;;
"systemctl enable --now docker") [ -x bin/docker ] ;;
"mountpoint --quiet "*) [ -L "$2" ] ;;
"mount "*)
  [ "$(/usr/sbin/blkid -p -s TYPE -o value "$1")" = ext4 ] || {{ echo "wrong fs type" >&2; exit 32; }}
  mkdir -p "$1.files"
  rmdir "$2" && ln -s "$1.files" "$2" ;;
"chown 10001:10001 "*) [ -d "$2" ] ;;
"sleep 5" | "systemd-run --on-active=60 "*) ;;
*) echo "not understood: ${{0##*/}} $*" >&2; exit 64 ;;
esac
"""


class Machine:
    """`aws` and `docker` are the texts of two programs; Docker is there once it was installed."""

    def __init__(self, folder: Path, name: str, *, aws: str, docker: str) -> None:
        self.name, self.folder = name, folder
        for each in ("bin", "later"):
            (folder / each).mkdir(parents=True)
        for path, text in {
            **{f"bin/{tool}": _STAND_IN.format(folder=folder, name=name) for tool in _TOOLS},
            "bin/aws": aws,
            "later/docker": docker,
        }.items():
            (folder / path).write_text(text)
            (folder / path).chmod(0o755)
        (folder / "disks").touch()
        (folder / "calls").touch()

    @property
    def state(self) -> Path:
        return self.folder / "srv/millrace"

    def plug(self, volume: Path) -> None:
        """Show an attached volume as a disk."""
        with (self.folder / "disks").open("a") as disks:
            disks.write(f"{volume} {volume.name.replace('-', '')}\n")

    def boot(self, user_data: str) -> subprocess.CompletedProcess[str]:
        """The first boot, in which cloud-init runs the user data."""
        for root in ROOTS:
            user_data = user_data.replace(f"={root}/", f"={self.folder}{root}/")
        script = self.folder / "var/lib/cloud/instance/scripts/part-001"
        script.parent.mkdir(parents=True)
        script.write_text(user_data)
        script.chmod(0o700)
        return self.run(script)

    def boot_again(self) -> list[subprocess.CompletedProcess[str]]:
        """A later boot, with nothing mounted, in which cloud-init runs the scripts of each boot."""
        if self.state.is_symlink():
            self.state.unlink()
            self.state.mkdir()
        return [self.run(each) for each in sorted((self.folder / "var/lib/cloud/scripts/per-boot").iterdir())]

    def calls(self, *tools: str) -> list[str]:
        """The calls of these tools, in order."""
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.partition(" ")[0] in tools]

    def run(self, script: Path) -> subprocess.CompletedProcess[str]:
        """Run a script as root of the machine would."""
        path = f"{self.folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            [script], cwd=self.folder, env={"PATH": path}, capture_output=True, text=True, timeout=120, check=False
        )


def new_volume(folder: Path, name: str) -> Path:
    """An empty volume."""
    volume = folder / name
    with volume.open("wb") as file:
        file.truncate(VOLUME_BYTES)
    return volume
