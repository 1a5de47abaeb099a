"""The Dockerfiles compared with the tree: sources, commands, tags, users."""

import fnmatch
import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
IMAGES = {path.name.partition(".")[0]: path for path in sorted((ROOT / "infra/images").glob("*.Dockerfile"))}
WORKERS = [name for name in IMAGES if name.startswith("worker")]


def instructions(image: str) -> list[tuple[str, str]]:
    """(instruction, rest) of a Dockerfile, with continued lines joined."""
    lines = [line for line in IMAGES[image].read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    split = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest) for word, rest in split]


def rests(image: str, instruction: str) -> list[str]:
    return [rest for word, rest in instructions(image) if word == instruction]


def copied(image: str) -> list[str]:
    """The sources of all COPY instructions."""
    return [source for rest in rests(image, "COPY") for source in rest.split()[:-1]]


def files_below(source: str) -> list[Path]:
    """The files of the tree that a source names, without caches."""
    found = [below for match in ROOT.glob(source) for below in ([match] if match.is_file() else match.rglob("*"))]
    return [path.relative_to(ROOT) for path in found if path.is_file() and "__pycache__" not in path.parts]


def reaches_the_builder(path: Path) -> bool:
    """Whether .dockerignore lets a file through; the last line that fits it or a folder above it decides."""
    through = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!").removeprefix("**/")
        if not pattern or pattern.startswith("#"):
            continue
        parts = path.parts if "**/" in line else path.parts[:1]
        if any(fnmatch.fnmatchcase(part, pattern) for part in parts):
            through = line.startswith("!")
    return through


def test_there_is_an_image_for_each_plane_and_accelerator() -> None:
    assert set(IMAGES) == {"control", "local", "worker", "worker-neuron", "worker-torchneuron"}


@pytest.mark.shows("files of the images")
@pytest.mark.parametrize("image", IMAGES)
def test_every_copied_file_exists_and_reaches_the_builder(image: str) -> None:
    assert copied(image)
    for source in copied(image):
        files = files_below(source)
        assert files, source
        assert [path for path in files if not reaches_the_builder(path)] == []


@pytest.mark.parametrize(
    "path", [".env", "infra/.env", ".git/config", ".venv/bin/python", "workspace/CURRENT", "tests/conftest.py"]
)
def test_nothing_else_reaches_the_builder(path: str) -> None:
    assert not reaches_the_builder(Path(path))


@pytest.mark.parametrize("image", WORKERS)
def test_worker_images_hold_the_worker_plane_and_no_flows(image: str) -> None:
    files = {path.as_posix() for source in copied(image) for path in files_below(source)}
    assert {"tasks/worker/__main__.py", "infra/store/base.py", "configs/base.yaml"} <= files
    assert not any(path.startswith("flows/") for path in files)


def test_the_control_image_has_everything_but_the_worker_plane() -> None:
    files = {path.as_posix() for source in copied("control") for path in files_below(source)}
    assert {"flows/pipeline.py", "configs/base.yaml", "prefect.yaml"} <= files
    in_tasks = {path.as_posix() for path in files_below("tasks")}
    assert in_tasks & files == {path for path in in_tasks if not path.startswith("tasks/worker/")}
    for command in rests("control", "RUN"):
        assert "[" not in command
        assert not re.search(r"requirements\.py \w", command)  # an extra would be named here


@pytest.mark.parametrize("image", IMAGES)
def test_commands_are_in_the_tree_or_are_installed(image: str) -> None:
    (command,) = (json.loads(rest) for rest in rests(image, "CMD"))
    if command[:2] == ["python", "-m"]:
        module = importlib.util.find_spec(command[2])
        assert module is not None
        if module.submodule_search_locations is not None:  # a package, which is run by its __main__
            assert importlib.util.find_spec(f"{command[2]}.__main__") is not None
    else:
        assert command[0] in {script.name for script in metadata.entry_points(group="console_scripts")}


@pytest.mark.parametrize("image", WORKERS)
def test_there_is_no_entrypoint_before_batchs_command(image: str) -> None:
    assert all(json.loads(rest) == [] for rest in rests(image, "ENTRYPOINT"))


def base_is_ubuntu(name: str) -> bool:
    """Whether versions have two parts, year and month."""
    return name.startswith("ubuntu:")


@pytest.mark.parametrize("image", IMAGES)
def test_base_images_are_pinned_by_a_full_version(image: str) -> None:
    arguments = dict(rest.split("=", maxsplit=1) for rest in rests(image, "ARG") if "=" in rest)
    for base in rests(image, "FROM"):
        name = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], base)
        _, _, tag = name.rpartition("/")[2].partition(":")
        assert re.match(r"\d\d\.\d\d$" if base_is_ubuntu(name) else r"\d+\.\d+\.\d+", tag), name


@pytest.mark.shows("files of the images")
@pytest.mark.parametrize("image", IMAGES)
def test_packages_are_held_to_the_pins(image: str) -> None:
    installs = [part for run in rests(image, "RUN") for part in run.split("&&") if "pip install" in part]
    assert installs
    assert [one for one in installs if "--constraint pins.txt" not in one and "--no-deps" not in one] == []


@pytest.mark.shows("files of the images")
@pytest.mark.parametrize("image", IMAGES)
def test_containers_do_not_run_as_root(image: str) -> None:
    """The last user, and nothing after it but the command; the ids are those that the template gives containers."""
    words = [word for word, _ in instructions(image)]
    assert rests(image, "USER")[-1] == "millrace"
    assert set(words[words.index("USER") :]) <= {"USER", "ENTRYPOINT", "CMD"}
    template = (ROOT / "infra/aws/millrace.yaml").read_text()
    user = re.search(r"WorkerUser:\n.*\n +Default: \"(\d+):(\d+)\"", template)
    assert user is not None
    assert int(user[1]) > 0 < int(user[2])
    assert f"--gid {user[2]} millrace && useradd --uid {user[1]}" in " ".join(rests(image, "RUN"))


@pytest.mark.parametrize("image", IMAGES)
def test_no_secret_is_baked_in(image: str) -> None:
    given = " ".join(rests(image, "ENV") + rests(image, "ARG"))
    assert not re.search(r"(?i)(secret|password|token|access_key)", given)
