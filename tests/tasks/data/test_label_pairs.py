import pyarrow as pa

from tasks.data.label_columns import label_classes, pair_mask
from tests.support.workspace.jobs import CLASSIFIER, tiny_config

LABELS = pa.table({"label": pa.array([1.0, 2.0, 3.0, 4.0, 5.0, None])})


def test_labels_are_mapped_to_classes():
    assert label_classes(LABELS, tiny_config(CLASSIFIER).heads).tolist() == [0, 0, -1, 1, 1, -1]
    assert label_classes(LABELS, tiny_config().heads).tolist() == [-1] * 6


def test_pairs_are_all_rows_or_the_positive_ones():
    assert pair_mask(LABELS, tiny_config(CLASSIFIER).heads).all()
    positives = tiny_config(CLASSIFIER, "heads.contrastive.positives_only=true")
    assert pair_mask(LABELS, positives.heads).tolist() == [False, False, False, True, True, False]
