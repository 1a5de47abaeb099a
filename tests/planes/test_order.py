"""The order of the folders: imports run downward only, so there is no circle."""

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.planes.source import MODULES, ROOT, TOPS, folder_edges, folder_of, imports, source_files

FEWEST_FILES, MOST_FILES = 3, 24
# Pairs of folders of which one imports from the other. It only falls, but for a new folder, such as tasks.erase, and
# what moves to the laboratory.
MOST_EDGES = 425

# Each folder may import from the folders below it in this table, and from no other.
ORDER = """
    flows.laboratory              what no run needs and a team may delete: `plan`, `decide`, `parity`, map, lineages
    tasks.laboratory              their work: machines planned, trainings weighed, failures simulated, sides compared
    tasks.worker.laboratory       its workers: a map made, weights from elsewhere read
    flows.demo                    the demo: an invented shop through the same doors as a user
    flows.cli                     the command `millrace`: a file for each group of commands, which runs them and shows
    flows.cli.serving             the command `serve`: its pages, its search workers, what it answers and refuses
    flows.cli.terminal            what all commands share: options, errors, progress bars
    flows                         the flows: pipeline, refresh, backfill, gate, watch, reap, prune, report
    flows.orchestration           what every flow run does, backfills and the watch
    flows.presentation.history    the pipeline's history: its page and figures
    flows.presentation.run        a run: its report, its account, its pages in the Prefect UI
    flows.presentation.stages     a stage: one file each, found by the stage's name
    flows.presentation            what is shown: the model, the words, the figures, three renderers
    tasks.doctor                  the surroundings checked: machine, workspace, server, and by jobs of their own
    tasks.erase                   an item or a person's rows: found in every file, taken out for good
    tasks.prune                   what nothing needs: found and deleted
    tasks.campaigns               campaigns: planned, timed, recorded
    tasks.monitoring              the past of a lineage, the time expected of its runs, its freshness
    tasks                         the seven stages, control side
    tasks.running                 how one stage runs: attempts, retries, output
    tasks.worker                  the seven stages, worker side
    tasks.worker.launch           workers started on one node or several
    tasks.worker.export           weights from elsewhere, a model for elsewhere, search services that get each release
    tasks.worker.online           the query side: exports of each kind, and the server that embeds and searches
    tasks.worker.search           a release, searched: its model, its nearest vectors, the hard negatives mined from it
    tasks.worker.evaluation       models, rows and items of an evaluation; heads solved at the end of a run
    tasks.worker.rows             the rows of a span: profiled, compared, judged; its holdout and its duplicates
    tasks.worker.catalogue        every live item, partition by partition, and its vectors, shard by shard
    tasks.worker.training         batches, losses, steps, checkpoints, forgetting; graphs compiled ahead of time
    tasks.first_hour              settings and files that fit a first log
    tasks.planning                what the next run trains, and from where
    tasks.preflight               what fails before a run begins, and whether its rows are enough
    tasks.judging                 a run judged: by its rules, beside released models, on the golden set
    tasks.worker.checks           checks of machines
    tasks.worker.model            the model, its heads of labels, and the rank of an item among others
    tasks.worker.devices          cpu, cuda, xla, neuron behind one interface; the Neuron SDK's tools
    tasks.worker.process          a worker as a process: its job, its signals, its threads
    tasks.runs                    runs: plan, lineage, ledger, results, releases, hosts; which release is current
    tasks.data                    from a user's files to spans; what rows and pretrained folders say
    tasks.data.files              a user's files: their format, records, values and times
    tasks.quality                 quality numbers from the results of single rows, and the gates before a release
    infra.compute                 where stages run: one entry for each place
    infra.compute.batch           AWS Batch and its API
    infra                         the Prefect server, deployments, alerts, why workers died
    infra.store                   where the workspace is kept: a directory or a bucket, and its credentials
    infra.images                  what the images hold
    tasks.contracts               what passes between the planes
    configs                       the configuration: read and compared
    configs.schema                every key of the configuration
    tasks.foundation              records and errors
"""
FOLDERS = [line.split()[0] for line in ORDER.strip().splitlines()]


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if path.read_text().strip()])
def test_imports_run_downward_only(module: str) -> None:
    own = FOLDERS.index(folder_of(module))
    imported = {folder_of(name) for name in imports(MODULES[module]) if name in MODULES and name not in TOPS}
    packages = {name for name in FOLDERS if name in imported}
    upward = sorted(name for name in packages if FOLDERS.index(name) < own)
    assert not upward, f"{module} imports from {', '.join(upward)}, above its own folder {folder_of(module)}"


def test_no_modules_import_in_a_circle() -> None:
    graph = {name: sorted((imports(path) & set(MODULES)) - {name, *TOPS}) for name, path in MODULES.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"these modules import each other: {' -> '.join(error.args[1])}")


def test_every_folder_has_its_place() -> None:
    with_code = {folder_of(name) for name, path in MODULES.items() if path.read_text().strip()}
    assert with_code <= set(FOLDERS), "add the folder to ORDER, above all that it imports from"
    assert {folder for folder in FOLDERS if not (ROOT / folder.replace(".", "/")).is_dir()} == set()


def test_a_folder_has_a_name_of_its_own() -> None:
    names = Counter(folder.rpartition(".")[2] for folder in FOLDERS)
    twice = {name for name, count in names.items() if count > 1}
    assert twice <= {"laboratory"}, "a name that stands for two subjects; each layer may have its laboratory"


def test_few_folders_import_from_each_other() -> None:
    edges = folder_edges()
    assert len(edges) <= MOST_EDGES, (
        f"{len(edges)} edges between folders: import from a folder that is imported already"
    )


@pytest.mark.parametrize("top", [*TOPS, "tests"])
def test_no_folder_is_too_full(top: str) -> None:
    files = Counter(path.parent for path in source_files(top) if path.name != "__init__.py")
    full = {Path(folder).relative_to(ROOT): count for folder, count in files.items() if count > MOST_FILES}
    assert not full, f"find the subjects in them, and a folder for each: {full}"


@pytest.mark.parametrize(
    "folder", [name for name in FOLDERS if not any(other.startswith(f"{name}.") for other in FOLDERS)]
)
def test_no_folder_is_too_empty(folder: str) -> None:
    files = [path for path in (ROOT / folder.replace(".", "/")).iterdir() if path.is_file()]
    held = [path for path in files if path.name != "__init__.py" or path.read_text().strip()]
    assert len(held) >= FEWEST_FILES, f"bring {', '.join(path.name for path in held)} to the folder of their subject"
