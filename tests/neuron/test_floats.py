"""Messages written by hand, as https://protobuf.dev/programming-guides/encoding says."""

from __future__ import annotations

import struct

from tests.support.processes.floats import with_floats


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """Fields by number: integers below 128, or bytes shorter than that."""
    found = b""
    for number, value in fields:
        found += bytes([number << 3, value]) if isinstance(value, int) else bytes([number << 3 | 2, len(value)]) + value
    return found


def shape(kind: int) -> bytes:
    return message((2, kind), (3, bytes([4])))


def module(kind: int, numbers: tuple[int, bytes]) -> bytes:
    literal = message((1, shape(kind)), numbers)
    constant = message((1, b"constant.1"), (2, b"constant"), (3, shape(kind)), (8, literal))
    pair = message((1, b"pair.2"), (3, message((2, 13), (4, shape(10)), (4, shape(kind)))))
    program = message((1, shape(kind)), (1, shape(4)), (2, shape(kind)), (3, b"\x0c"))
    computation = message((1, b"main"), (2, constant), (2, pair), (4, program))
    fixed = bytes([7 << 3 | 1]) + bytes(8)  # a field of 64 bits that this code does not know
    return message((1, b"\x10\x0c"), (3, computation), (4, program), (5, 12)) + fixed


def test_doubles_become_floats_wherever_a_type_or_a_number_stands_and_nothing_else_changes():
    doubles, floats = struct.pack("<2d", 0.5, -3.0), struct.pack("<2f", 0.5, -3.0)
    assert with_floats(module(12, (9, doubles))) == module(11, (8, floats))


def test_a_module_without_doubles_stays_as_it_is():
    assert with_floats(module(10, (4, bytes(3)))) == module(10, (4, bytes(3)))
