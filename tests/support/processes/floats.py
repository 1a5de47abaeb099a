"""Graphs in XLA's own format, with floats in place of doubles.

torch-xla sends a program's own numbers as doubles, and to a NeuronCore as floats. A message is read as a list of its
fields; those that are changed are of xla/hlo.proto and xla/xla_data.proto (OpenXLA), and all others stay.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping

_F32, _F64 = 11, 12  # PrimitiveType
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # wire types
_F32S, _F64S = 8, 9  # fields of LiteralProto

Field = tuple[int, int, bytes]  # number, wire type, content
Change = Callable[[Field], Field]


def with_floats(module: bytes) -> bytes:
    """The HloModuleProto without doubles."""
    return _changed(module, _MODULE)


def _changed(message: bytes, changes: Mapping[int, Change]) -> bytes:
    fields = (changes.get(field[0], lambda same: same)(field) for field in _fields(message))
    return b"".join(_written(*field) for field in fields)


def _inside(changes: Mapping[int, Change]) -> Change:
    return lambda field: (field[0], field[1], _changed(field[2], changes))


def _type(field: Field) -> Field:
    number, wire, content = field
    return (number, wire, _varint(_F32)) if content == _varint(_F64) else field


def _numbers(field: Field) -> Field:
    doubles = struct.unpack(f"<{len(field[2]) // 8}d", field[2])
    return _F32S, _BYTES, struct.pack(f"<{len(doubles)}f", *doubles)


_SHAPE: dict[int, Change] = {2: _type}
_SHAPE[4] = _inside(_SHAPE)  # of a tuple
_LITERAL: dict[int, Change] = {1: _inside(_SHAPE), _F64S: _numbers}
_LITERAL[10] = _inside(_LITERAL)  # of a tuple
_PROGRAM_SHAPE = {1: _inside(_SHAPE), 2: _inside(_SHAPE)}
_COMPUTATION = {2: _inside({3: _inside(_SHAPE), 8: _inside(_LITERAL)}), 4: _inside(_PROGRAM_SHAPE)}
_MODULE = {3: _inside(_COMPUTATION), 4: _inside(_PROGRAM_SHAPE)}


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            _, end = _read_varint(message, at)
        elif wire == _BYTES:
            length, at = _read_varint(message, at)
            end = at + length
        else:
            end = at + {_EIGHT: 8, _FOUR: 4}[wire]
        yield number, wire, message[at:end]
        at = end


def _written(number: int, wire: int, content: bytes) -> bytes:
    length = _varint(len(content)) if wire == _BYTES else b""
    return _varint(number << 3 | wire) + length + content


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
