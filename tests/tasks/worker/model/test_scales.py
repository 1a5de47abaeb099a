import tempfile
import tracemalloc

import numpy as np
import pytest

from tasks.worker.model import features

PARTS, PART = 200, 2_000


def test_the_scale_of_many_values_is_exact_and_takes_the_memory_of_some(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features, "READ_VALUES", 1_000)
    random = np.random.default_rng(3)
    whole = np.exp(2 * random.standard_normal((PARTS, PART))) - 5
    whole[:50] = np.sort(whole[:50].ravel()).reshape(50, PART)  # the lowest ones come together
    whole[7, ::3] = np.nan
    known = whole[~np.isnan(whole)]
    with tempfile.TemporaryFile() as file:
        tracemalloc.start()
        for part in whole:
            features.add_values(file, part)
        scale = features.scale_of(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    low, high = np.quantile(known, 0.001, method="lower"), np.quantile(known, 0.999, method="higher")
    clipped = np.clip(known, low, high)
    assert (scale.low, scale.high) == (low, high)
    assert scale.mean == pytest.approx(clipped.mean(), rel=1e-12)
    assert scale.deviation == pytest.approx(clipped.std(), rel=1e-12)
    assert peak_bytes < known.nbytes / 20
