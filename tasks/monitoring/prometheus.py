"""The numbers of a workspace as Prometheus reads them: text with HELP and TYPE, in seconds, dollars and ratios.

All are computed from the workspace; nothing is counted in a process, so a restart loses nothing.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from configs.prices import basis_of, unpriced
from infra.store.base import Store
from tasks.contracts.outcomes import InferOutcome, Phases, TrainOutcome
from tasks.contracts.runs import Release, RunState
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass, StageError
from tasks.monitoring.freshness import freshness_seen
from tasks.monitoring.history import History, age_seconds, read_history
from tasks.monitoring.problems import Kind
from tasks.monitoring.progress import span_end
from tasks.monitoring.spending import Costs, costs_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(store: Store, at: dt.datetime | None = None) -> bytes:
    """Return the text; ages are those at `at`, by default now. Raises StoreError: the workspace could not be read."""
    snapshot, at = Snapshot(store), at or dt.datetime.now(dt.UTC)
    history = read_history(snapshot)
    registry = CollectorRegistry()
    registry.register(_Numbers(history, _problems(snapshot, history, at), at))
    return generate_latest(registry)


class _Numbers(Collector):
    """Answers the registry once."""

    def __init__(self, history: History, problems: Counter[Kind] | None, at: dt.datetime) -> None:
        self._history = history
        self._problems = problems
        self._at = at

    def collect(self) -> Iterator[Metric]:
        yield from _sums(self._history)
        yield _spans(self._history)
        yield from _release(self._history, self._at)
        if self._history.last is not None:
            yield from _last_run(self._history.last)
        unreadable = "Records of the workspace that could not be read and are missing from these numbers."
        yield _gauge("millrace_unreadable_records", unreadable, len(self._history.problems))
        if self._problems is not None:
            text = "What is wrong with the lineage of the last run, by kind, as reported by: millrace freshness."
            counts = {kind.replace(" ", "_"): self._problems[kind] for kind in get_args(Kind)}
            yield _by_label(GaugeMetricFamily, "millrace_problems", text, "kind", counts)
        yield _gauge("millrace_exposition_timestamp_seconds", "When these numbers were made.", self._at.timestamp())


def _problems(snapshot: Snapshot, history: History, at: dt.datetime) -> Counter[Kind] | None:
    """Count the problems under the settings of the last run; None if these, or the lineage, are not readable."""
    if history.config is None:
        return None
    try:
        found = freshness_seen(snapshot, history.config, at, history.catalogue)
        return Counter(problem.kind for problem in found.problems)
    except StageError:  # `millrace freshness` reports it in full; the other numbers are still useful
        return None


def _sums(history: History) -> Iterator[Metric]:
    """Yield sums over all runs and attempts."""
    summed = history.totals
    states = [run.state for run in history.runs]
    counts = {state.lower(): states.count(state) for state in RunState}
    yield _by_label(GaugeMetricFamily, "millrace_runs", "Runs by the state that they are in.", "state", counts)
    text = "Runs that came to a result, a rejection included, over all that ended and were not cancelled."
    yield _gauge("millrace_run_success_ratio", text, summed.run_success_rate)

    attempts = {"OK": summed.succeeded} | {each.value: summed.attempts_by_class.get(each, 0) for each in FailureClass}
    text = "Attempts of stages that ended, by failure class; OK: done."
    yield _by_label(CounterMetricFamily, "millrace_attempts", text, "class", attempts)
    lost = {each.value: summed.seconds_by_class.get(each, 0.0) for each in FailureClass}
    text = "Wall time of failed attempts."
    yield _by_label(CounterMetricFamily, "millrace_failed_attempt_seconds", text, "class", lost)
    yield _gauge("millrace_attempts_open", "Attempts without an end on record: running, or lost.", summed.running)

    text = "Median error of the planned time of the last runs, as a share of the actual time."
    yield _gauge("millrace_plan_error_ratio", text, history.plan_error)
    text = "Wall time of all attempts, by phase."
    yield _by_label(CounterMetricFamily, "millrace_attempt_seconds", text, "phase", summed.seconds.model_dump())
    yield _gauge("millrace_goodput_ratio", "Productive seconds over those on machines.", summed.goodput)
    if summed.cost is not None:
        yield CounterMetricFamily("millrace_cost_dollars", "What all attempts cost.", value=summed.cost)
    yield from _costs("millrace", "of all runs", costs_of(history.runs))
    missing = dict.fromkeys(unpriced(summed.charges), 1.0)
    text = "Machines without a price, for which costs are not known; always 1."
    yield _by_label(GaugeMetricFamily, "millrace_unpriced_machine", text, "instance", missing)
    yield CounterMetricFamily("millrace_vectors", "Vectors that all runs made.", value=summed.vectors)


def _spans(history: History) -> Metric:
    states = Counter(row.state.lower() for row in sorted(history.spans, key=lambda row: row.state))
    return _by_label(
        GaugeMetricFamily, "millrace_spans", "The newest spans by how far they have come.", "state", states
    )


def _release(history: History, at: dt.datetime) -> Iterator[Metric]:
    """Yield the numbers of the current release, and how fresh it is."""
    current, target = history.current, history.target_hours
    yield _gauge("millrace_releases", "Releases that were made.", history.newest_release or 0)
    yield _gauge("millrace_freshness_target_seconds", "The age that is promised.", target and target * 3600)
    promised = history.targets and history.targets.catalogue_target_hours * 3600
    yield _gauge("millrace_catalogue_target_seconds", "How long items may wait for a release, as promised.", promised)
    if current is None:
        return
    age, end = age_seconds(current, at), span_end(current.span.name)
    yield _gauge("millrace_freshness_age_seconds", "Age of the newest data in the release that serves.", age)
    text = "Up to when the release that serves has data; time() less this is the age at any time."
    yield _gauge("millrace_release_data_end_timestamp_seconds", text, end.timestamp())
    made = dt.datetime.fromisoformat(current.created_at).timestamp()
    yield _gauge("millrace_release_created_timestamp_seconds", "When the release that serves was made.", made)
    yield _gauge("millrace_release_number", "Number of the release that serves.", current.number)
    yield _gauge("millrace_release_vectors", "Vectors of the release that serves.", current.vectors)
    if (catalogue := history.catalogue) is not None:
        text = "How long the first of the items that the release that serves lacks has waited; 0: it lacks none."
        yield _gauge("millrace_catalogue_age_seconds", text, catalogue.hours(at) * 3600)
        text = "Item feeds and validated rows that the release that serves lacks."
        yield _gauge("millrace_catalogue_waiting_sources", text, len(catalogue.waiting))
        text = "Share of the items of the release that serves that have a vector."
        yield _gauge("millrace_release_coverage_ratio", text, catalogue.coverage)
    names = {"span": current.span.name, "model": current.model.version, "run": current.run_key}
    yield _info("millrace_release_info", "The release that serves, in its labels; always 1.", names)
    yield _quality(current)


def _quality(release: Release) -> Metric:
    text = "Metrics on the holdout of the release that serves: on unseen queries, on seen ones, and on all."
    parts = release.by_queries.parts if release.by_queries is not None else {}
    found = GaugeMetricFamily("millrace_release_quality", text, labels=["metric", "queries"])
    for queries, metrics in {**{name: part.metrics for name, part in parts.items()}, "all": release.metrics}.items():
        for name, value in metrics.items():
            found.add_metric([name, queries], value)
    return found


def _last_run(run: Run) -> Iterator[Metric]:
    """Yield the numbers of the run that began last."""
    names = {"run": run.run_key, "span": run.span, "lineage": run.lineage, "state": run.state.lower()}
    names["class"] = run.failure.value if run.failure else ""
    yield _info("millrace_last_run_info", "The run that began last, in its labels; always 1.", names)
    text = "Whether the run that began last came to a result; absent while it goes on."
    yield _gauge("millrace_last_run_success", text, run.succeeded)
    for name, moment in (("began", run.began_at), ("ended", run.ended_at)):
        at = dt.datetime.fromisoformat(moment).timestamp() if moment else None
        yield _gauge(f"millrace_last_run_{name}_timestamp_seconds", f"When the run that began last {name}.", at)
    text = "Wall time of all attempts of the run that began last, by stage and phase."
    seconds = GaugeMetricFamily("millrace_last_run_stage_seconds", text, labels=["stage", "phase"])
    for stage in dict.fromkeys(one.stage for one in run.attempts):
        for phase in Phases.model_fields:
            of_phase = [getattr(one.seconds, phase) for one in run.attempts if one.stage is stage]
            seconds.add_metric([stage.value, phase], sum(of_phase))
    yield seconds
    yield _gauge("millrace_last_run_cost_dollars", "What the run that began last has cost.", run.totals.cost)
    yield from _costs("millrace_last_run", "of the run that began last", costs_of([run]))
    queued = "How long the run that began last waited for machines."
    yield _gauge("millrace_last_run_queued_seconds", queued, run.totals.seconds.queued)
    if isinstance(trained := run.outcome(Stage.train), TrainOutcome):
        speed = "Training speed of the run that began last."
        yield _gauge("millrace_last_run_training_pairs_per_second", speed, trained.pairs_per_second)
    if isinstance(inferred := run.outcome(Stage.infer), InferOutcome):
        speed = "Inference speed of the run that began last."
        yield _gauge("millrace_last_run_inference_texts_per_second", speed, inferred.texts_per_second)


def _costs(prefix: str, of: str, costs: Costs) -> Iterator[Metric]:
    """Yield the dollars by stage and purpose and for a unit of work, and the prices; nothing without a known cost."""
    if costs.cost is None:
        return
    text = f"Dollars {of}, by stage."
    yield _by_label(GaugeMetricFamily, f"{prefix}_stage_cost_dollars", text, "stage", _known(costs.by_stage))
    purposes = {name: getattr(costs, name) for name in ("failed", "booting", "compiling", "idle")}
    text = f"Dollars {of}, by purpose; failed has all of attempts that failed."
    yield _by_label(GaugeMetricFamily, f"{prefix}_purpose_cost_dollars", text, "purpose", _known(purposes))
    units = {"million_vectors": costs.per_million_vectors, "million_pairs": costs.per_million_pairs,
             "point": costs.per_point, "release": costs.per_release}  # fmt: skip
    text = f"Dollars {of} for a million vectors, a million pairs, a point of recall@10 gained, a release."
    yield _by_label(GaugeMetricFamily, f"{prefix}_unit_cost_dollars", text, "unit", _known(units))
    names = {"basis": basis_of(costs.charges)}
    yield _info(f"{prefix}_cost_info", f"Basis, region and dates of the prices {of}; always 1.", names)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge, without a sample if `value` is None."""
    gauge = GaugeMetricFamily(name, text)
    if value is not None:
        gauge.add_metric([], value)
    return gauge


def _by_label(
    family: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    """Return numbers that one label distinguishes."""
    metric = family(name, text, labels=[label])
    for each, value in values.items():
        metric.add_metric([each], value)
    return metric


def _info(name: str, text: str, names: dict[str, str]) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=list(names))
    gauge.add_metric(list(names.values()), 1)
    return gauge
