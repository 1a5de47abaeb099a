"""Read the ids of rows and items, the same in every format."""

import hashlib
import re

from tasks.data.files.cursor import SourceRow
from tasks.data.files.values import SCIENTIFIC, Scalar, as_text, is_missing_word

_WHOLE_FLOAT = re.compile(r"([1-9][0-9]*)\.0")  # 12345.0, as pandas writes whole numbers of a column with gaps
_EXACT = 2**53


def id_of(record: SourceRow, column: str, value: Scalar, texts_are_values: bool) -> str | None:
    """Return an id as text; None if it is missing: null, NaN, blank, or a word such as `null`.

    Args:
        value: the value of the column, as `scalar` returns it.
        texts_are_values: the format has no types, so that 12345.0 is the whole number 12345, as in typed formats.

    Raises:
        DataError: the id has lost digits: it is in scientific notation, or a number that float64 can't hold exactly.
    """
    if value is None or is_missing_word(value):
        return None
    if isinstance(value, float) and abs(value) >= _EXACT:
        problem = f"{value!r} is a floating-point number, which has lost the last digits of the id"
        raise record.error(column, f"{problem}; write ids as whole numbers or as text")
    text = as_text(value)
    if isinstance(value, str) and SCIENTIFIC.fullmatch(text.strip()):
        problem = f"{text!r} is an id in scientific notation, as a spreadsheet writes it, which has lost digits"
        raise record.error(column, f"{problem}; make the column text there, and export it again")
    whole = _WHOLE_FLOAT.fullmatch(text) if texts_are_values else None
    return whole[1] if whole else text


def hash_of(text: str) -> str:
    """Return the id of an item without one: a hash of its text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
