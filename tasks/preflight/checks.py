"""Checks that fail before a run begins, instead of a minute into it."""

import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from configs.schema.config import Config
from configs.schema.model import number_of
from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest, read_manifest
from tasks.contracts.references import FeedRef, HoldoutRule, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Queue, Stage, compute_of
from tasks.contracts.workspace import RESULT
from tasks.data.files.sources import source_path
from tasks.data.join import Join, join_of
from tasks.data.label_columns import label_columns
from tasks.data.rows import (
    BATCH_ROWS,
    CORE,
    DELETED,
    FEED_KIND,
    LABEL,
    OF_FEED,
    SPAN_KIND,
    TEXTS,
    group_columns,
    has_ids_alone,
)
from tasks.data.span_versions import list_feeds, list_spans
from tasks.foundation.errors import ConfigError, DataError
from tasks.judging.golden_set import read_golden_set
from tasks.preflight.encoder import check_encoder
from tasks.runs.plan import NEW_LINEAGE
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

_MOST_WORDS = 0.5  # share of texts that are no numbers, above which a column does not hold numbers


def check_columns(store: Store, config: Config, window: Sequence[SpanRef]) -> None:
    """Check that each span of a run, or for ids alone the item feed, has the columns that features and slices name.

    Raises:
        DataError: a span lacks one; names span, key and column.
    """
    keys = {
        "features.numeric": config.features.numeric,
        "features.categorical": config.features.categorical,
        "features.entity": (config.features.entity,) if config.features.entity else (),
        "evaluate.slices": config.evaluate.slices,
        "evaluate.group": [name for name in group_columns(HoldoutRule.of(config.evaluate).group) if name not in CORE],
        "validate.events.column": (config.validate_.events.column,) if config.validate_.events else (),
        **{
            key: (column,)
            for key, column in label_columns(config).items()
            if column not in (*CORE, *config.validate_.made_columns)
        },
    }
    of_feed: set[str] | None = None
    for span in window:
        facts = read_manifest(store, span.prefix).facts
        there = facts.get("columns")
        missing = [(key, column) for key, columns in keys.items() for column in columns if column not in (there or {})]
        if there is not None and missing and facts.get(TEXTS) == OF_FEED:
            of_feed = _columns_of_feed(store) if of_feed is None else of_feed
            missing = [(key, column) for key, column in missing if column not in of_feed]
        if there is not None and missing:
            key, column = missing[0]
            own = ", ".join(name for name in there if name not in CORE) or "no columns but the ones of --map"
            where = "it"
            if of_feed is not None:
                own = ", ".join(sorted({*of_feed, *there} - {*CORE, DELETED})) or own
                where = "neither has the item feed; they"
            raise DataError(
                f"span {span.name} v{span.version} has no column {column!r}, which {key} names; {where} "
                f"{'has' if of_feed is None else 'have'} {own}; "
                "name another, or ingest the span again with this column and --replace"
            )


def check_numbers(store: Store, config: Config, window: Sequence[SpanRef]) -> None:
    """Check that the columns which the settings read as numbers hold numbers, by the first rows of each span.

    Raises:
        DataError: most texts of a column are no numbers; names span, key and column.
    """
    names = {f"heads.{name}.column" for name, head in config.heads.of_labels.items() if head.of_names}
    keys = dict.fromkeys(config.features.numeric, "features.numeric")
    keys |= {column: key for key, column in label_columns(config).items() if key not in names}
    for span in window:
        kinds = read_manifest(store, span.prefix).facts.get("columns") or {}
        for column in [name for name in keys if kinds.get(name) == "string"]:
            _require_numbers(store, span, SPAN_KIND, column, keys[column])
    features = [name for name in config.features.numeric if name not in config.features.query]
    for feed in list_feeds(store)[-1:] if features else ():
        kinds = read_manifest(store, feed.prefix).facts.get("columns") or {}
        for column in [name for name in features if kinds.get(name) == "string"]:
            _require_numbers(store, feed, FEED_KIND, column, keys[column])


def _require_numbers(store: Store, source: SpanRef | FeedRef, kind: str, column: str, key: str) -> None:
    """Check that most of the first texts of a column are numbers. Raises DataError: they are not."""
    texts = [text for text in _first_texts(store, source.prefix, kind, column) if text is not None and text.strip()]
    words = [text for text in texts if math.isnan(number_of(text))]
    if len(words) > len(texts) * _MOST_WORDS:
        raise DataError(
            f"{'span' if kind == SPAN_KIND else 'item feed'} {source.name} v{source.version}: column {column!r}, which "
            f"{key} names, holds text such as {words[0]!r}: {len(words):,} of its first {len(texts):,} values are no "
            "numbers; convert it in the source and ingest it again with --replace, or name another column"
            f"{'; names are features.categorical' if key == 'features.numeric' else ''}"
        )


def _first_texts(store: Store, prefix: str, kind: str, column: str) -> Iterable[str | None]:
    manifest = open_manifest(store, prefix, kind)
    for entry in manifest.files[:1]:
        with pq.ParquetFile(open_file(store, prefix, manifest, entry.name), pre_buffer=False) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
                return batch.column(0).to_pylist()
    return ()


def check_feed(store: Store, window: Sequence[SpanRef]) -> None:
    """Check that an item feed exists if rows have no texts.

    Raises:
        DataError: it does not; names a span of ids alone and the remedy.
    """
    if not (alone := [span for span in window if has_ids_alone(store, span)]) or list_feeds(store):
        return
    raise DataError(
        f"the rows of span {alone[0].name} name their items by id alone, and {store.uri} has no item feed with their "
        "texts; first: millrace ingest --items FILE --time-column COLUMN --span month --map id=COLUMN,text=COLUMN. If "
        "the rows have texts, ingest them with --map ...,item=COLUMN and --replace"
    )


def window_join(store: Store, window: Sequence[SpanRef]) -> Join | None:
    """Return the join of a window's rows of ids alone and the item feed; None without such rows, or without a feed."""
    alone = [span for span in window if has_ids_alone(store, span)]
    return join_of(store, alone, list_feeds(store)) if alone else None


def check_join(store: Store, config: Config, window: Sequence[SpanRef]) -> None:
    """Check that the item feed knows enough of a log's ids for validate, which would stop minutes later.

    Raises:
        DataError: more of the rows are about unknown items than `validate.max_bad_share`; names ids and the way out.
    """
    join, most = window_join(store, window), config.validate_.max_bad_share
    if join is None or join.unknown_share <= most or any(not has_ids_alone(store, span) for span in window):
        return
    raise DataError(
        f"{join.sentence}. Rows of unknown items are set apart, and at most {most:.0%} of the rows may be "
        "(validate.max_bad_share): ingest the missing items with millrace ingest --items FILE, or correct the ids in "
        "one of the exports"
    )


def _columns_of_feed(store: Store) -> set[str]:
    """Return the columns of the item feed's records."""
    return {name for feed in list_feeds(store) for name in read_manifest(store, feed.prefix).facts.get("columns", ())}


def check_labels(store: Store, config: Config, window: Sequence[SpanRef]) -> None:
    """Check that the rows have labels if a head needs them, and none if their events give labels.

    Raises:
        ConfigError: no row has a label, and heads.classification or a head on the column label is set; or rows have
            labels, and `validate.events` would replace them.
    """
    if config.validate_.events is not None:
        for span in window:
            if read_manifest(store, span.prefix).facts.get("labels"):
                raise ConfigError(
                    f"rows of span {span.name} v{span.version} have labels of their own, and validate.events gives "
                    "others; ingest the span again without label in --map, and --replace, or set validate.events=null"
                )
        return
    heads = [f"heads.{name}" for name, head in config.heads.of_labels.items() if head.column == LABEL]
    heads = [*(["heads.classification"] if config.heads.classification else []), *heads]
    if not heads or not window:
        return
    facts = [read_manifest(store, span.prefix).facts for span in window]
    if all(each.get("labels") == 0 for each in facts):
        names = window[0].name if len(window) == 1 else f"{window[0].name} to {window[-1].name}"
        raise ConfigError(
            f"{heads[0]} learns from labels, and no row of {names} has one; ingest again with "
            f"--map ...,label=COLUMN and --replace, or train without it: --set {heads[0]}=null"
        )


def check_accelerator(config: Config, devices: Path = Path("/dev")) -> None:
    """Check that this machine has an NVIDIA GPU if a stage on this machine needs one. No driver is loaded for it.

    Args:
        devices: folder of the machine's devices.

    Raises:
        ConfigError: it has none; names the stage and the way out.
    """
    here = [s for s in Stage if s.traits.queue is Queue.accelerator and compute_of(config, s) == "local"]
    if config.accelerator != "cuda" or not here:
        return
    # dxg is the GPU of Windows, as Linux inside it sees it.
    if any(devices.glob("nvidia*")) or (devices / "dxg").exists() or shutil.which("nvidia-smi"):
        return
    raise ConfigError(
        f"accelerator: cuda needs an NVIDIA GPU for {here[0]}, which runs on this machine (compute: local), and it has "
        f"neither {devices}/nvidia* nor nvidia-smi; set accelerator=cpu, set compute=batch for machines with GPUs, or "
        "install the driver (in a container: docker run --gpus all)"
    )


def check_plan(store: Store, plan: RunPlan) -> None:
    """Check a run as `check_window` and `check_join` do. A trained run or a refresh needs no encoder."""
    begins = (
        bool(plan.window) and plan.parent is None and not store.exists(RESULT.key(run=plan.run_key, stage=Stage.train))
    )
    check_window(store, plan.config, plan.window, begins)
    if not store.exists(RESULT.key(run=plan.run_key, stage=Stage.validate)):
        check_join(store, plan.config, plan.window)


def check_idle(store: Store, config: Config) -> None:
    """Check the settings by the newest span, if there is nothing to do. Raises as `check_window` does."""
    check_window(store, config, list_spans(store)[-1:], begins=False)


def unread_settings(store: Store, plan: RunPlan) -> list[str]:
    """Return sentences about settings of a run that nothing reads: the encoder of a lineage that has begun."""
    if plan.parent is None:
        return []
    model = plan.config.model
    names = [name for name in ("pretrained", "scratch") if getattr(model, name) is not None]
    begun = "imported weights"
    if plan.history:
        first = Run(Snapshot(store), plan.history[0].run_key).plan
        if first is None or (first.config.model.pretrained, first.config.model.scratch) == (
            model.pretrained,
            model.scratch,
        ):
            return []
        encoder = first.config.model.pretrained or "a new encoder"
        begun = f"{encoder}, in {plan.history[0].span.name}"
    return [
        f"model.{name} is not read: the lineage {plan.config.lineage!r} began with {begun}, and goes on with its "
        f"weights; to begin with another encoder, {NEW_LINEAGE}"
        for name in names
    ]


def check_window(store: Store, config: Config, window: Sequence[SpanRef], begins: bool) -> None:
    """Check the settings against this machine and the spans of a run, and the encoder of a new model made here.

    Args:
        begins: True if the run starts without a parent.

    Raises:
        ConfigError: the pretrained folder can't be used, a head has no labels, the golden set doesn't exist, or this
            machine lacks the GPU that a stage needs.
        DataError: a span lacks a column that the settings name, or has no numbers in it; its rows have ids alone, and
            no item feed exists; or the golden set is damaged.
    """
    check_accelerator(config)
    check_feed(store, window)
    check_columns(store, config, window)
    check_numbers(store, config, window)
    check_labels(store, config, window)
    if config.evaluate.golden is not None and window:
        read_golden_set(source_path(config.evaluate.golden))
    if begins and (config.train.compute or config.compute) == "local":
        check_encoder(config)
