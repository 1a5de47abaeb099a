"""The learning rate over the global steps of a lineage: a schedule without an end, and a decay at the end of a run."""

import math

from configs.schema.training import DecayConfig, TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the rate of global step `step` (from 0): linear warmup, then peak / sqrt(1 + steps since / decay_steps).

    The inverse square root has no end, like incremental training; a schedule with a last step would restart with each
    span. The rate stays at or above `learning_rate_floor` times the peak, so that a lineage still learns after years.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    left = (1 + (step - config.warmup_steps) / config.decay_steps) ** -0.5
    return config.learning_rate * max(left, config.learning_rate_floor)


def decay_factor(step: int, steps: range, settings: DecayConfig | None) -> float:
    """Return the factor of the learning rate at global step `step` for the decay at the end of a run.

    It falls linearly from 1 to `floor` at the last of the run's `steps`. The next run resumes the schedule from the
    decayed weights (Wen et al. 2024, arXiv:2410.05192, WSD-S).
    """
    if settings is None or not steps:
        return 1.0
    decaying = math.ceil(settings.share * len(steps))
    done = step - (steps.stop - decaying) + 1
    return 1.0 - (1.0 - settings.floor) * max(0, done) / decaying


def rate_in_run(step: int, steps: range, config: TrainConfig) -> float:
    """Return the learning rate of global step `step` of a run over `steps`, for groups with no factor of their own."""
    return learning_rate(step, config) * decay_factor(step, steps, config.decay_before_release)
