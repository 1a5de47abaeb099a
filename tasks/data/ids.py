"""Ids of rows and items, alike in every format, and within the bounds of all serving targets.

The golden set and the checks of validate need them without the conversion of whole records.
"""

import hashlib

from tasks.data.files.readers import SourceRow
from tasks.data.files.values import SCIENTIFIC, Scalar, as_text, is_missing_word, scalar, whole_text

MOST_ID_BYTES = 2000  # in UTF-8; an index of PostgreSQL, and so pgvector, holds 2,704 with its own bytes
NUL = "\0"  # PostgreSQL can't hold it in a text
_EXACT = 2**53


def scalar_of(record: SourceRow, column: str) -> Scalar:
    """Return a value of a record as null, bool, number or text. Raises DataError: bytes that are not UTF-8 text."""
    try:
        return scalar(record.values.get(column))
    except UnicodeDecodeError as error:
        raise record.error(
            column, f"the bytes are not UTF-8 text: {error}; convert them, or leave the column out"
        ) from error


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
    return whole_text(text) if texts_are_values else text


def unpublishable(item_id: str, text: str | None) -> str | None:
    """Return the reason for which a serving target can't hold an item; None if all can."""
    if NUL in item_id or NUL in (text or ""):
        return "has a NUL character, which no text in PostgreSQL may have; take it out"
    if len(item_id.encode(errors="surrogatepass")) > MOST_ID_BYTES:
        return (
            f"an id of more than {MOST_ID_BYTES:,} bytes, the most that targets can index; give the item a shorter one"
        )
    return None


def hash_of(text: str) -> str:
    """Return the id of an item without one: a hash of its text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
