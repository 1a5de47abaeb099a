"""Ids of rows and items, alike in every format, and within the bounds of all serving targets.

The golden set and the checks of validate need them without the conversion of whole records.
"""

import hashlib

from tasks.data.files.readers import SourceRow
from tasks.data.files.values import EXACT_BITS, SCIENTIFIC, Scalar, as_text, is_missing_word, scalar, whole_text

MOST_ID_BYTES = 2000  # in UTF-8; an index of PostgreSQL, and so pgvector, holds 2,704 with its own bytes
NUL = "\0"  # PostgreSQL can't hold it in a text


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
        DataError: the id has lost digits: it is in scientific notation, or a number that its type can't hold exactly;
            or it is a number with a fraction.
    """
    if value is None or is_missing_word(value):
        return None
    if isinstance(value, float) and (problem := _inexact(value)):
        raise record.error(column, f"{value!r} {problem}; write ids as whole numbers or as text")
    text = as_text(value)
    if isinstance(value, str) and SCIENTIFIC.fullmatch(text.strip()):
        problem = f"{text!r} is an id in scientific notation, as a spreadsheet writes it, which has lost digits"
        raise record.error(column, f"{problem}; make the column text there, and export it again")
    return whole_text(text) if texts_are_values else text


def _inexact(value: float) -> str:
    """Return the reason for which a floating-point number is no id; empty for an exact whole number."""
    bits = EXACT_BITS.get(type(value), EXACT_BITS[float])
    if abs(value) < 2**bits:
        return "" if value.is_integer() else "has a fraction"
    kind = {53: "floating-point number", 24: "number of float32", 11: "number of float16"}[bits]
    return f"is a {kind}, which has lost the last digits of the id: whole numbers are exact below 2 ** {bits} alone"


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
