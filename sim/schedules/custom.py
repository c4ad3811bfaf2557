"""A user's own order, read from the CSV of PyTorch's pipelining runtime (torch 2.13, both of its formats).

One row a rank, one action a cell; an empty cell is a bubble. "compute_only" cells are `<stage><F|I|W|B><microbatch>`
and `(<forward>;<backward>)OVERLAP_F_B`. Of "compute_comms" the cells UNSHARD, RESHARD, REDUCE_GRAD, SEND_F, RECV_F,
SEND_B and RECV_B are read and left out: the engine moves data and reduces gradients itself.
"""

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from sim.schedules.ir import COMPUTE, Action, Kind, Schedule
from sim.specs.fields import InputError
from sim.specs.files import text_of

MAX_BYTES, MAX_RANKS, MAX_ACTIONS = 2**23, 4096, 1_000_000
"""Limits of a file; larger orders are of no use and slow to read."""

ACTION = "([0-9]{1,6})([FIWB])([0-9]{1,6})"
SINGLE = re.compile(ACTION)
PAIR = re.compile(rf"\({ACTION};{ACTION}\)OVERLAP_F_B")
LEFT_OUT = re.compile(r"[0-9]{1,6}((UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{1,6})?|(SEND|RECV)_[FB][0-9]{1,6})")
CELLS = "<stage><F|I|W|B><microbatch>, (<forward>;<backward>)OVERLAP_F_B, a communication cell of torch, or empty"

KINDS = {kind.name: kind for kind in COMPUTE}
Places = dict[Action, str]
"""Where every action stands in the file."""


def read_order(path: Path) -> Schedule:
    """Return the order of a CSV file, named "custom".

    Raises:
        InputError: what is wrong, with file, row and cell (both from 1).
    """
    return parse_order(text_of(path, MAX_BYTES), str(path))


def parse_order(text: str, source: str = "order") -> Schedule:
    """Return the order of CSV text, named "custom"; a stage sits on the rank (row) that runs it.

    source: what errors call the text.

    Raises:
        InputError: what is wrong, with row and cell (both from 1).
    """
    actions: list[tuple[Action, ...]] = []
    fused: list[tuple[int, ...]] = []
    places: Places = {}
    for row, cells in _rows(text, source):
        rank, pairs = list[Action](), list[int]()
        for column, cell in enumerate(cells, 1):
            if not cell:
                continue
            place = f"{source} row {row} cell {column}"
            found = _cell(cell.strip(), place)
            if len(found) == 2:
                pairs.append(len(rank))
            for action in found:
                if action in places:
                    first = places[action].removeprefix(f"{source} ")
                    raise InputError(place, str(action), f"every action once (it stands in {first})")
                places[action] = place
            rank += found
        if not rank:
            raise InputError(f"{source} row {row}", "no action", "one or more actions on every rank")
        actions.append(tuple(rank))
        fused.append(tuple(pairs))
        if len(places) > MAX_ACTIONS:
            raise InputError(f"{source} row {row}", "more actions", f"at most {MAX_ACTIONS} in all")
    rank_of = _placed(actions, places, source)
    microbatches = _checked(places, len(rank_of), source)
    return Schedule("custom", microbatches, rank_of, tuple(actions), fused=tuple(fused))


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of every row; empty lines at the end of the file are none."""
    if not text.strip():
        raise InputError(source, "no rows", "one row of actions a rank")
    lines = text.rstrip("\r\n").split("\n")
    if len(lines) > MAX_RANKS:
        raise InputError(source, f"{len(lines)} rows", f"at most {MAX_RANKS} rows")
    row = 0
    try:
        for row, cells in enumerate(csv.reader(StringIO("\n".join(lines)), strict=True), 1):
            yield row, cells
    except csv.Error as error:
        raise InputError(f"{source} row {row + 1}", str(error), "comma-separated cells") from None


def _cell(cell: str, place: str) -> list[Action]:
    """Return the actions of a cell: none, one, or two that run as one."""
    if found := SINGLE.fullmatch(cell):
        stage, kind, microbatch = found.groups()
        return [Action(int(stage), KINDS[kind], int(microbatch))]
    if not cell or LEFT_OUT.fullmatch(cell):
        return []
    found = PAIR.fullmatch(cell)
    if not found:
        raise InputError(place, cell, CELLS)
    parts = found.groups()
    actions = [Action(int(s), KINDS[kind], int(k)) for s, kind, k in (parts[:3], parts[3:])]
    forward, backward = actions
    if (forward.kind, backward.kind) != (Kind.F, Kind.B):
        raise InputError(place, cell, "an F first and a B second in OVERLAP_F_B")
    if forward.stage == backward.stage and forward.microbatch == backward.microbatch:
        raise InputError(place, cell, "two actions in OVERLAP_F_B of which neither waits for the other")
    return actions


def _placed(actions: list[tuple[Action, ...]], places: Places, source: str) -> tuple[int, ...]:
    """Return the rank of every stage."""
    rank_of: dict[int, int] = {}
    for rank, order in enumerate(actions):
        for action in order:
            home = rank_of.setdefault(action.stage, rank)
            if home != rank:
                raise InputError(places[action], str(action), f"stage {action.stage} on one rank (row {home + 1})")
    gap = next((s for s in range(len(rank_of)) if s not in rank_of), None)
    if gap is not None:
        raise InputError(source, f"no action of stage {gap}", f"every stage from 0 to {max(rank_of)}")
    return tuple(rank_of[s] for s in range(len(rank_of)))


def _checked(places: Places, stages: int, source: str) -> int:
    """Return the number of microbatches; every stage has a forward and a whole backward of each."""
    microbatches = sum(stage == 0 and kind is Kind.F for stage, kind, _ in places)
    if not microbatches:
        raise InputError(source, "no F of stage 0", "an F of every microbatch on every stage")
    for action, place in places.items():
        s, kind, k = action
        if k >= microbatches:
            raise InputError(place, str(action), f"microbatches 0 to {microbatches - 1} (stage 0 has so many F)")
        if kind is Kind.B and (split := [a for a in _halves(s, k) if a in places]):
            raise InputError(place, str(action), f"either B or I and W (there is {split[0]})")
    for s in range(stages):
        for k in range(microbatches):
            if (forward := Action(s, Kind.F, k)) not in places:
                raise InputError(source, f"no {forward}", f"every stage's F, microbatches 0 to {microbatches - 1}")
            if (whole := Action(s, Kind.B, k)) in places:
                continue
            missing = [a for a in _halves(s, k) if a not in places]
            if missing:
                allowed = f"{whole}, or {s}I{k} and {s}W{k}"
                raise InputError(places[forward], f"{forward} without {missing[0]}", allowed)
    return microbatches


def _halves(stage: int, microbatch: int) -> list[Action]:
    return [Action(stage, kind, microbatch) for kind in (Kind.I, Kind.W)]
