"""Values that are nearly times: their likely meaning, and the way to write them."""

import datetime as dt
import re

from tasks.data.files.times import parse_time
from tasks.data.files.values import NUMBER

_EXCEL_DAYS = range(20_000, 80_000)  # from 1954 to 2119
_EXCEL_EPOCH = dt.datetime(1899, 12, 30)
_SHORT_YEAR = re.compile(r"([0-9]{2})([-/.])([0-9]{2})\2([0-9]{2})(?:[ T].*)?")
_ABBREVIATION = re.compile(r"(.*[0-9]) ?([A-Z]{2,5})")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?")


def way_to_write(value: object) -> str:
    """Return the likely meaning of a value that is no time, and the way to write it; empty if it is not nearly one."""
    text = str(value).strip()
    if NUMBER.fullmatch(text) and _EXCEL_DAYS.start <= float(text) < _EXCEL_DAYS.stop:
        day = _EXCEL_EPOCH + dt.timedelta(days=float(text))
        return (
            f"{text} may be a day number of Excel, {day:%Y-%m-%d}; format the column there as yyyy-mm-dd hh:mm, and "
            "export it again"
        )
    if found := _SHORT_YEAR.fullmatch(text):
        return (
            f"the year of {text!r} has two digits; write four, as in 20{found[1]}-{found[3]}-{found[4]}, or give "
            "--dayfirst if the day is first"
        )
    if (found := _ABBREVIATION.fullmatch(text)) and _is_time(found[1]):
        return f"{found[2]} is the name of a zone, which places use differently; write its offset, as in +02:00"
    if _CLOCK.fullmatch(text):
        return f"{text!r} has no date; put it before the time, as in 2026-11-20T{text}"
    return ""


def year_comes_first(texts: list[str]) -> bool:
    """Return True if dates with years of two digits likely begin with the year: it differs less than the last part."""
    found = [each for text in texts if (each := _SHORT_YEAR.fullmatch(text.strip()))]
    return bool(found) and len({each[1] for each in found}) < len({each[4] for each in found})


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except (ValueError, OverflowError, TypeError):
        return False
    return True
