from pathlib import Path

import numpy as np

from tasks.data.items import TEXT
from tasks.data.rows import ITEM, ITEM_ID
from tasks.worker.search.find_negatives import negative_arrays
from tasks.worker.search.negatives import Found
from tasks.worker.training.build import build_parts
from tasks.worker.training.training_rows import make_pairs
from tests.support.workspace.jobs import FEATURES, all_rows, make_workspace, tiny_config


def test_an_item_that_a_row_has_too_becomes_the_same_input(tmp_path: Path):
    store, ref = make_workspace(tmp_path, rows=12)
    config = tiny_config(*FEATURES, "model.prompts={query: 'q ', item: 'this is: '}", "train.max_tokens.item=6")
    rows = all_rows(store, [ref], config)
    parts = build_parts(config, [rows])
    items = rows.rename_columns([TEXT if name == ITEM else name for name in rows.column_names])
    found = Found(np.zeros((12, 2), dtype=np.int32), items.select([ITEM_ID, TEXT, "price", "locale", "gift"]), {})
    pairs = make_pairs([rows], parts, config)
    negatives = negative_arrays(found, 15, parts, config)
    assert negatives is not None
    assert negatives.tokens.ids.tolist() == pairs.item.ids.tolist()
    assert negatives.tokens.offsets.tolist() == pairs.item.offsets.tolist()
    assert (negatives.features.numeric == pairs.item_features.numeric).all()
    assert (negatives.features.categorical == pairs.item_features.categorical).all()
    assert negatives.item_key.tolist() == pairs.item_key.tolist()
    assert negatives.text_key.tolist() == pairs.text_key.tolist()
    assert negatives.of_row[11:].tolist() == [[0, 0], [-1, -1], [-1, -1], [-1, -1]], "replayed rows have none"
