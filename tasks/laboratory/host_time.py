"""Seconds of a stage's work on the host's processors and disk, before any attempt is on record.

validate grows with its rows, on one machine, and with the rows of the history, whose signatures and keys it compares on
all of its machines; evaluate and release with the items of the catalogue, whose vectors they read and search. Train
reads nothing of the history.
"""

import re

from configs.instances import machine_of
from configs.schema.config import Config
from tasks.contracts.stages import Place, Stage
from tasks.laboratory.encoding_time import Load
from tasks.laboratory.published import published
from tasks.preflight.encoder_size import NUMBER_BYTES, EncoderSize

MODELS = 4  # most models that an evaluation ranks among all items
RELEASES = 2  # a release searches its own vectors and the last release's
PAIR_BYTES = 24  # keys of a row, by which its pair is known
RIGHT_ITEMS = 10  # pairs of a row's query in all earlier spans: assumed
KNOWN_BYTES = 43  # id and hashes of an item, which the first of several workers of release reads; measured 2026-11-30
ASKED_BYTES = 99  # keys of a row, with which several workers compare; measured 2026-11-29


def host_seconds(config: Config, stage: Stage, load: Load, place: Place, size: EncoderSize | None) -> float:
    """Return the seconds of the host's work; 0 for a stage without any, or if its rows or items are not known.

    Args:
        size: encoder, for the width of the vectors; None: not known.
    """
    figures, rows = published().host, sum(load.rows or ())
    match stage:
        case Stage.validate:
            earlier, asked, met = load.earlier / place.machines, 0.0, 0
            if place.machines > 1:  # keys are written, and read by each; the first reads the pairs that others found
                asked, met = 2 * rows * ASKED_BYTES / _disk(place), min(load.earlier, RIGHT_ITEMS * rows)
            shared = rows * figures.row_on_cores.value + earlier * figures.earlier_row.value
            pairs = rows + (load.earlier if config.train.replay > 0 else earlier + met)  # all on one machine, to replay
            known = pairs * (figures.known_pair.value + PAIR_BYTES / _disk(place))
            return rows * figures.row.value + shared / _vcpus(place) + asked + known
        case Stage.evaluate:
            return MODELS * _search(config, load, place, size, config.evaluate.max_rows) / place.machines
        case Stage.release:
            known = (load.items or 0) * KNOWN_BYTES / _disk(place) if place.machines > 1 else 0.0
            return RELEASES * (_search(config, load, place, size, config.release.queries) / place.machines + known)
        case _:
            return 0.0


def _search(config: Config, load: Load, place: Place, size: EncoderSize | None, queries: int) -> float:
    """Return the seconds in which one machine reads the vectors of all items and ranks them for some queries."""
    width = config.model.embedding_width or (size.hidden if size is not None else 0)
    figures, items = published().host, load.items or 0
    products = 2 * queries * width / (figures.products.value * _vcpus(place))
    return items * (width * NUMBER_BYTES / _disk(place) + products)


def _disk(place: Place) -> float:
    """Return the bytes a second of a machine's disk."""
    figures = published().host
    return (figures.accelerator_disk if machine_of(place.instance) is not None else figures.cpu_disk).value


def _vcpus(place: Place) -> int:
    """Return the vCPUs of a machine: as listed, else by its name, since N.xlarge has 4 N; 1 if neither tells."""
    if (machine := machine_of(place.instance)) is not None:
        return machine.vcpus
    found = re.search(r"[.](\d*)xlarge$", place.instance or "")
    return 4 * int(found[1] or 1) if found else 1
