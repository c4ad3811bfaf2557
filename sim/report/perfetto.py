"""Tracks in Perfetto's own format: protobuf packets, written by hand (no dependency).

Source: perfetto's protos/perfetto/trace: trace_packet.proto, track_event/track_descriptor.proto, counter_descriptor,
process_descriptor, thread_descriptor, track_event.proto and debug_annotation.proto (field numbers below).
"""

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from sim.report.tracks import Tracks

SEQUENCE = 1
BEGIN, END, COUNT = 1, 2, 4
SIZE_BYTES = 3
"""CounterDescriptor.Unit"""
EXPLICIT = 3
"""TrackDescriptor.ChildTracksOrdering"""


@lru_cache(1 << 12)
def varint(value: int) -> bytes:
    """Return a non-negative integer in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def message(*fields: tuple[int, Any]) -> bytes:
    """Return a protobuf message of (number, value): int as a varint, float as a double, text or bytes with a length."""
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, int):  # negative numbers as 64-bit two's complement
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else bytes(value)
    return varint(number << 3 | 2) + varint(len(data)) + data


def _fixed64(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<Q", value)


def perfetto_trace(held: Tracks) -> bytes:
    """Return a whole trace; times in nanoseconds, counters in bytes."""
    packets = [*_descriptors(held), *_slices(held), *_counters(held)]
    return b"".join(message((1, packet)) for packet in packets)


def _packet(at: int | None, field: int, content: bytes) -> bytes:
    times = [] if at is None else [(8, at)]
    return message(*times, (10, SEQUENCE), (field, content))


def _uuid(process: int, track: int = 0) -> int:
    """Return the number of a process (track 0) or of a track, counted from 1 within the trace."""
    return (process << 32) + track


def _descriptors(held: Tracks) -> Iterator[bytes]:
    for process, name in held.processes.items():
        of_process = message((1, process), (6, name))
        yield _packet(None, 60, message((1, _uuid(process)), (3, of_process), (11, EXPLICIT)))
    for n, track in enumerate(held.tracks, 1):
        own, parent = _uuid(track.process, n), _uuid(track.process)
        yield _packet(None, 60, message((1, own), (2, track.name), (5, parent), (12, track.order)))


def _annotations(args: Mapping[str, Any]) -> list[tuple[int, bytes]]:
    return [(4, message((10, name), (4 if isinstance(v, int) else 6, v))) for name, v in args.items()]


def _slices(held: Tracks) -> Iterator[bytes]:
    """Slices of a track do not overlap, so that each one's end follows its begin."""
    leaving: dict[int, bytes] = {}
    arriving: dict[int, bytes] = {}
    for number, flow in enumerate(held.flows, 1):
        for n, i in enumerate(flow):
            last = n == len(flow) - 1
            where = arriving if last else leaving
            where[i] = where.get(i, b"") + _fixed64(48 if last else 47, number)
    for i, s in enumerate(held.slices):
        on = (11, _uuid(held.tracks[s.track].process, s.track + 1))
        what = message((9, BEGIN), on, (22, s.category), (23, s.name), *_annotations(s.args))
        yield _packet(s.start, 11, what + leaving.get(i, b"") + arriving.get(i, b""))
        yield _packet(s.end, 11, message((9, END), on))


def _counters(held: Tracks) -> Iterator[bytes]:
    """A group for each rank, below the process's other tracks: one counter for every category that is ever used."""
    number, below = len(held.tracks), 1 + max((track.order for track in held.tracks), default=0)
    for c in held.counters:
        number += 1
        group = _uuid(c.process, number)
        place = ((5, _uuid(c.process)), (12, below + number), (11, EXPLICIT))
        yield _packet(None, 60, message((1, group), (2, c.name), *place))
        for name, values in c.values.items():
            if not any(values):
                continue
            number += 1
            own = _uuid(c.process, number)
            unit = message((3, SIZE_BYTES))
            yield _packet(None, 60, message((1, own), (2, name), (5, group), (8, unit), (12, number)))
            before = None
            for at, value in zip(c.at, values, strict=True):
                if value != before:
                    yield _packet(at, 11, message((9, COUNT), (11, own), (44, value)))
                before = value
