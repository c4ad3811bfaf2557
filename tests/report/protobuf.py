"""A decoder of protobuf's wire format that shares nothing with the writer: (number, value) of every field."""

import struct
from collections import defaultdict
from typing import Any

Fields = dict[int, list[Any]]


def decode(data: bytes) -> Fields:
    """Return values by field number: integers, 8 raw bytes, or the bytes of a field with a length."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = number(data, at)
        if key & 7 == 0:
            value, at = number(data, at)
        elif key & 7 == 1:
            value, at = data[at : at + 8], at + 8
        else:
            assert key & 7 == 2, f"wire type {key & 7}"
            length, at = number(data, at)
            assert at + length <= len(data)
            value, at = data[at : at + length], at + length
        found[key >> 3].append(value)
    return found


def number(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at` and where the next thing starts."""
    value = 0
    for shift in range(0, 70, 7):
        value += (data[at] % 128) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise AssertionError("a varint of more than ten bytes")


def real(value: bytes) -> float:
    """Return a double."""
    return float(struct.unpack("<d", value)[0])


def whole(value: bytes) -> int:
    """Return a fixed64."""
    return int(struct.unpack("<Q", value)[0])
