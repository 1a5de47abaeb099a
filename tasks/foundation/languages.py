"""The languages of texts, by a model of py3langid; only the extra `worker` installs it.

Alone, since that package is loaded by no other file of this folder.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

UNSURE = "unsure"  # also for numbers, codes and texts of a word or two
_SURE = 0.7  # least probability of a language


def languages(texts: Sequence[str]) -> list[str]:
    """Return the ISO 639 code of each text's language, or UNSURE. Raises ImportError: py3langid is not installed."""
    classify = load_identifier().classify
    return [UNSURE if (found := classify(text)[0]) in ("und", "zxx") else found for text in texts]


@lru_cache(maxsize=1)
def load_identifier() -> Any:
    """Load the model, which takes half a second; later calls return the same."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_SURE)
