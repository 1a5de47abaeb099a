"""What can't be asked against forgetting."""

import pytest

from configs.load import load_config
from tasks.foundation.errors import ConfigError

KEEP = "train.keep_best={{metric: {metric}, rows: 10, patience: {patience}}}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("train.replay=1",), "train.replay"),
        (("train.averaging={}",), "takes one of ema_half_life_steps and merge_with_parent"),
        (("train.averaging={ema_half_life_steps: 3, merge_with_parent: 0.3}",), "takes one of"),
        (("train.decay_before_release={share: 0.2, floor: 0}",), "train.decay_before_release.floor"),
        ((KEEP.format(metric="effective_rank", patience=1),), "effective_rank is not measured in training"),
        ((KEEP.format(metric="auc", patience=1),), "train.keep_best on auc needs heads.classification"),
        (
            (KEEP.format(metric="mrr@10", patience=1), "train.decay_before_release={share: 0.2, floor: 0.1}"),
            "may end a run before train.decay_before_release has begun",
        ),
    ],
)
def test_settings_that_can_not_work_are_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=settings)
    assert message in str(caught.value)
