"""The round mechanism (arXiv 2008.09213, section 5), compiled: who runs where, and what a round gets done.

Between two events, that is while no job ends or arrives and no shares change, rounds run here one after the other;
where every job has devices whatever the priorities, rounds that are all alike are taken in one step.

Written as plain loops: what NumPy has for sorts, searches and sums takes numba twice as long to compile.
"""

from math import ceil, floor, inf

import numpy as np

from sim.cluster.arrays import (
    EXTENDED,
    MOVED,
    NOW,
    OFFERED,
    ROUND_END,
    SKIPPED,
    Fleet,
    Held,
    Log,
    Next,
    Rows,
    Rule,
    Work,
)
from sim.cluster.state import Floats, Ints
from sim.engine.compiled import compiled, inner, sort, those

NEWCOMER = 1e9
"""Priority per share of a row that has not run yet."""
MOST_FAILURES = 5
"""After so many rounds without a whole step per device the published scheduler gives a job up."""


@inner()
def _can_run(rows: Rows, r: int, j: int) -> bool:
    return bool(rows.speed[r, j, 0] > 0 and (rows.job[r, 1] < 0 or rows.speed[r, j, 1] > 0))


@inner()
def _priorities(rows: Rows, spent_s: Floats) -> Floats:
    """Return share over fraction of time received, (R, m)."""
    found = np.zeros(rows.share.shape)
    for r in range(len(rows.scale)):
        for j in range(len(spent_s)):
            share = rows.share[r, j]
            if not rows.known[r] or share == 0 or not _can_run(rows, r, j):
                continue
            received = rows.had_s[r, j] / spent_s[j] if spent_s[j] > 0 else 0.0
            found[r, j] = share / received if received > 0 else share * NEWCOMER
    return found


@inner()
def _queue(rows: Rows, j: int, priority: Floats, idle: bool, left: int, taken: Ints, rule: Rule, queue: Ints) -> int:
    """Put the rows that could run on type j into the queue and return how many: those with a priority, or the others.

    They go by priority, deficit, share, and as they came. A pair without a share shares no devices, except as
    published.
    """
    count = 0
    keys = np.empty((len(rows.scale), 3))
    for r in range(len(rows.scale)):
        a, b = rows.job[r]
        if (priority[r, j] > 0) == idle or rows.scale[r] > left or not _can_run(rows, r, j):
            continue
        if taken[a] or (b >= 0 and (taken[b] or (idle and not rule.parity))):
            continue
        keys[r, 0], keys[r, 1], keys[r, 2] = priority[r, j], rows.deficit_s[r, j], rows.share[r, j]
        queue[count] = r
        count += 1
    sort(queue, count, keys)
    return count


@inner()
def _choose(rows: Rows, fleet: Fleet, order: Ints, priority: Floats, rule: Rule) -> Ints:
    """Return the type of device (R,) that each row gets in this round, or -1; then its place among those chosen."""
    chosen = np.full((2, len(rows.scale)), -1)
    taken = np.zeros(len(rows.single), dtype=np.int64)
    queue = np.empty(len(rows.scale), dtype=np.int64)
    place = 0
    for j in order:
        left = fleet.devices[j]
        for idle in (False, True):
            if left == 0 or (idle and rule.strict):
                break
            for k in range(_queue(rows, j, priority, idle, left, taken, rule, queue)):
                r = queue[k]
                a, b = rows.job[r]
                if rows.scale[r] > left or taken[a] or (b >= 0 and taken[b]):
                    continue
                taken[a] = 1
                if b >= 0:
                    taken[b] = 1
                chosen[0, r], chosen[1, r] = j, place
                place += 1
                left -= rows.scale[r]
    return chosen


@inner()
def _in_order(rows: Rows, chosen: Ints, j: int) -> Ints:
    """Return the rows that are chosen for type j: large ones first, then as they were chosen."""
    found, keys = those(chosen[0] == j), np.empty((len(rows.scale), 2))
    for r in found:
        keys[r, 0], keys[r, 1] = rows.scale[r], -chosen[1, r]
    sort(found, len(found), keys)
    return found


@inner()
def _chains(held: Ints, rows: int) -> tuple[Ints, Ints]:
    """Return the first device of each row, and after each device the next one of its row; -1 ends a chain."""
    head, after = np.full(rows, -1), np.full(len(held), -1)
    for w in range(len(held) - 1, -1, -1):
        if held[w] >= 0:
            after[w] = head[held[w]]
            head[held[w]] = w
    return head, after


@inner()
def _extend(r: int, j: int, head: Ints, after: Ints, fleet: Fleet, devices: Ints) -> bool:
    """Leave a row on its devices if they are of type j and nobody has them yet; return whether."""
    w = head[r]
    if w < 0 or not fleet.first[j] <= w < fleet.first[j] + fleet.devices[j]:
        return False
    while w >= 0:
        if devices[w] >= 0:
            return False
        w = after[w]
    w = head[r]
    while w >= 0:
        devices[w] = r
        w = after[w]
    return True


@inner()
def _assign(r: int, scale: int, j: int, fleet: Fleet, devices: Ints) -> None:
    """Give a row devices of type j: of the fullest server with room for all, else of the emptiest ones."""
    size = fleet.per_server[j]
    servers = ceil(fleet.devices[j] / size)
    free = np.zeros(servers, dtype=np.int64)
    for k in range(fleet.devices[j]):
        free[k // size] += devices[fleet.first[j] + k] < 0
    while scale > 0:
        best = -1
        for s in range(servers):
            fits = free[s] >= scale
            if free[s] == 0:
                continue
            if (
                best < 0
                or (fits and (free[best] < scale or free[s] < free[best]))
                or (not fits and free[best] < scale and free[s] > free[best])
            ):
                best = s
        for k in range(best * size, min((best + 1) * size, fleet.devices[j])):
            if scale > 0 and devices[fleet.first[j] + k] < 0:
                devices[fleet.first[j] + k] = r
                scale -= 1
        free[best] = 0


@inner()
def _assign_in_turn(r: int, scale: int, j: int, fleet: Fleet, devices: Ints) -> None:
    """Give a row the first free devices of type j."""
    for w in range(fleet.first[j], fleet.first[j] + fleet.devices[j]):
        if scale > 0 and devices[w] < 0:
            devices[w] = r
            scale -= 1


@inner()
def _place(rows: Rows, fleet: Fleet, held: Ints, chosen: Ints, rule: Rule, extended: Ints) -> Ints:
    """Return the row of every device (W,); `extended` (R,) tells which rows stay where they are.

    As published, rows stay only if no larger one has taken their devices, and a job that came after the last reset of
    the shares gets none; otherwise all that can stay do.
    """
    devices = np.full(len(held), -1)
    head, after = _chains(held, len(rows.scale))
    for j in range(len(fleet.devices)):
        order = _in_order(rows, chosen, j)
        low = 0
        while low < len(order):
            high = low + 1
            while high < len(order) and (not rule.parity or rows.scale[order[high]] == rows.scale[order[low]]):
                high += 1
            for k in range(low, high):
                extended[order[k]] = _extend(order[k], j, head, after, fleet, devices)
            for k in range(low, high):
                r = order[k]
                if extended[r]:
                    continue
                if not rule.parity and fleet.per_server[j] > 1:
                    _assign(r, rows.scale[r], j, fleet, devices)
                elif rows.known[r] or not rule.parity:
                    _assign_in_turn(r, rows.scale[r], j, fleet, devices)
            low = high
    return devices


@inner()
def _speeds(rows: Rows, fleet: Fleet, chosen: Ints, devices: Ints) -> tuple[Ints, Ints, Floats]:
    """Return whether each row has devices, if in more servers than it needs, and its speeds (R, 2) in steps/s there."""
    placed, servers = np.zeros(len(rows.scale), dtype=np.int64), np.zeros(len(rows.scale), dtype=np.int64)
    last, wide = np.full(len(rows.scale), -1), np.zeros(len(rows.scale), dtype=np.int64)
    speed = np.zeros((len(rows.scale), 2))
    for j in range(len(fleet.devices)):
        for k in range(fleet.devices[j]):
            r = devices[fleet.first[j] + k]
            if r >= 0:
                placed[r] = 1
                servers[r] += last[r] != k // fleet.per_server[j]
                last[r] = k // fleet.per_server[j]
    for r in those(placed):
        j = chosen[0, r]
        wide[r] = servers[r] > ceil(rows.scale[r] / fleet.per_server[j])
        for i in range(2):
            speed[r, i] = rows.spread[r, j, i] if wide[r] else rows.speed[r, j, i]
    return placed, wide, speed


@inner()
def _work_as_published(
    rows: Rows, work: Work, placed: Ints, speed: Floats, clock: Floats, rule: Rule
) -> tuple[Floats, bool]:
    """Work a round of whole steps that ends with its last row; return for how long (R,) rows ran, and if any ended.

    Time counts from the end of the round before, also where the cluster was empty since; a pair ends together; a job
    that has less than a step for each of its devices fails.
    """
    finish, steps = np.zeros(len(placed)), np.zeros((len(placed), 2))
    ran_s, changed, last_s = np.zeros(len(placed)), False, 0.0
    for r in those(placed):
        for i in range(2 if rows.job[r, 1] >= 0 else 1):
            steps[r, i] = min(float(floor(speed[r, i] * rule.round_s)), work.left[rows.job[r, i]])
            finish[r] = max(finish[r], clock[NOW] + steps[r, i] / speed[r, i])
        ran_s[r] = finish[r] - clock[ROUND_END]
        last_s = max(last_s, finish[r])
    for r in those(placed):
        whole = steps[r, 0] // rows.scale[r] > 0 and (rows.job[r, 1] < 0 or steps[r, 1] // rows.scale[r] > 0)
        if not whole or ran_s[r] <= 0:
            ran_s[r] = 0.0
            changed = True
            if rows.job[r, 1] < 0:
                work.failures[rows.job[r, 0]] += 1
                if work.failures[rows.job[r, 0]] >= MOST_FAILURES:
                    work.end_s[rows.job[r, 0]] = inf
            continue
        for i in range(2 if rows.job[r, 1] >= 0 else 1):
            a = rows.job[r, i]
            work.failures[a], work.ran[a] = 0, 1
            work.left[a] -= steps[r, i]
            if work.left[a] <= 0:
                work.end_s[a] = finish[r]
                changed = True
    clock[NOW] = clock[ROUND_END] = last_s
    return ran_s, changed


@inner()
def _work(
    rows: Rows, work: Work, placed: Ints, wide: Ints, speed: Floats, moved: Ints, chosen: Ints, clock: Floats,
    rule: Rule,
) -> tuple[Floats, bool]:  # fmt: skip
    """Work a round of fixed length; return for how long (R,) rows held their devices, and if any job ended.

    A job that resumes or moves first loads its checkpoint, for several rounds where one is too short; it ends when it
    has done its steps, and the other of its pair goes on alone.
    """
    ran_s, changed = np.zeros(len(placed)), False
    until, begin = np.zeros(2), np.zeros(2)
    for r in those(placed):
        pair = rows.job[r, 1] >= 0
        until[1] = begin[1] = 0.0
        for i in range(2 if pair else 1):
            a = rows.job[r, i]
            if moved[r] and work.ran[a]:
                work.loading_s[a] = work.switch_s[a]
            begin[i] = min(work.loading_s[a], rule.round_s)
            work.loading_s[a] -= begin[i]
            until[i] = min(rule.round_s, begin[i] + work.left[a] / speed[r, i])
            work.left[a] = max(0.0, work.left[a] - (until[i] - begin[i]) * speed[r, i])
            work.ran[a] = 1
        ran_s[r] = max(until[0], until[1])
        if pair and until[0] != until[1]:
            late = 0 if until[0] > until[1] else 1
            a = rows.job[r, late]
            known = rows.spread if wide[r] else rows.speed
            alone, together = known[rows.single[a], chosen[0, r], 0], speed[r, late]
            begun = max(until[1 - late], begin[late])
            todo = work.left[a] + (until[late] - begun) * together
            ran_s[r] = until[late] = min(rule.round_s, begun + todo / alone)
            work.left[a] = max(0.0, todo - (ran_s[r] - begun) * alone)
        for i in range(2 if pair else 1):
            a = rows.job[r, i]
            if work.left[a] <= 1e-9 * speed[r, i]:
                work.end_s[a] = clock[NOW] + until[i]
                changed = True
    clock[NOW] += rule.round_s
    clock[ROUND_END] = clock[NOW]
    return ran_s, changed


@inner()
def _settled(rows: Rows, fleet: Fleet, rule: Rule) -> bool:
    """Return whether all that can run on each type, in their order, fit: then no priority decides anything."""
    if not rule.fixed:
        return False
    for r in range(len(rows.scale)):
        if rows.job[r, 1] >= 0 or (rule.parity and not rows.known[r]):
            return False
    taken = np.zeros(len(rows.scale), dtype=np.int64)
    for j in range(len(fleet.devices)):
        need = 0
        for r in range(len(rows.scale)):
            if not taken[r] and _can_run(rows, r, j) and not (rule.strict and rows.share[r, j] <= 0):
                need += rows.scale[r]
                taken[r] = 1
        if need > fleet.devices[j]:
            return False
    return True


@inner()
def _like(
    rows: Rows, work: Work, placed: Ints, speed: Floats, clock: Floats, rule: Rule, to: Next
) -> tuple[int, float]:
    """Return how many rounds like this one follow before anything happens, but for the last, and how long one takes."""
    lasts, ends = 0.0, inf
    for r in those(placed):
        if work.loading_s[rows.job[r, 0]] > 0:
            return 0, 0.0
        steps = speed[r, 0] * rule.round_s
        if rule.parity:
            steps = float(floor(steps))
            if steps // rows.scale[r] < 1:
                return 0, 0.0
        lasts = max(lasts, steps / speed[r, 0])
        ends = min(ends, work.left[rows.job[r, 0]] / steps)
    if not rule.parity:
        lasts = rule.round_s
    ends = min(ends, (to.arrival_s - clock[NOW]) / lasts)
    if to.needed:
        ends = min(ends, (to.last_reset_s + rule.reset_every_s - clock[NOW]) / lasts)
    return max(0, ceil(min(ends, 1e15)) - 2), lasts


@compiled()
def run_rounds(
    rows: Rows, fleet: Fleet, work: Work, held: Held, spent_s: Floats, clock: Floats, counts: Ints, log: Log,
    orders: Ints, rule: Rule, to: Next,
) -> tuple[int, int]:  # fmt: skip
    """Run rounds until a job ends or fails, something is due or the log is full.

    Returns:
        How many entries of the log were written, and how many of `orders` (K, m), of the types in each round, were
        used; one order more than entries where nobody could be placed.
    """
    settled = _settled(rows, fleet, rule)
    for k in range(len(log.start_s)):
        chosen = _choose(rows, fleet, orders[k], _priorities(rows, spent_s), rule)
        extended = np.zeros(len(rows.scale), dtype=np.int64)
        before, _ = _chains(held.row, len(rows.scale))
        for r in range(len(before)):
            counts[OFFERED] += before[r] >= 0
        devices = _place(rows, fleet, held.row, chosen, rule, extended)
        for w in range(len(devices)):
            held.row[w] = devices[w]
        placed, wide, speed = _speeds(rows, fleet, chosen, held.row)
        working, moved = those(placed), np.zeros(len(placed), dtype=np.int64)
        if len(working) == 0:
            return k, k + 1
        for r in working:
            counts[EXTENDED] += extended[r]
            if not extended[r]:
                moved[r] = 1
                for a in rows.job[r]:
                    counts[MOVED] += a >= 0 and work.ran[a]
        log.start_s[k], log.repeats[k] = clock[NOW], 1
        for w in range(log.row.shape[1]):
            log.row[k, w] = devices[w]
        if rule.parity:
            ran_s, changed = _work_as_published(rows, work, placed, speed, clock, rule)
        else:
            ran_s, changed = _work(rows, work, placed, wide, speed, moved, chosen, clock, rule)
        log.length_s[k] = clock[NOW] - log.start_s[k]
        _account(rows, work, held, spent_s, ran_s, chosen)
        if changed or clock[NOW] >= to.arrival_s or _due(clock, rule, to):
            return k + 1, k + 1
        if settled:
            _skip(rows, work, held, spent_s, clock, counts, log, rule, to, chosen, placed, speed, k)
    return len(log.start_s), len(log.start_s)


@inner()
def _due(clock: Floats, rule: Rule, to: Next) -> bool:
    return to.needed and clock[NOW] - to.last_reset_s >= rule.reset_every_s


@inner()
def _account(rows: Rows, work: Work, held: Held, spent_s: Floats, ran_s: Floats, chosen: Ints) -> None:
    # Those that ran longest first, as in the published scheduler: rounding alone tells some priorities apart there.
    order = those(ran_s)
    sort(order, len(order), ran_s.reshape(-1, 1))
    for r in order:
        j, jobs = chosen[0, r], 2 if rows.job[r, 1] >= 0 else 1
        rows.had_s[r, j] += ran_s[r]
        spent_s[j] += ran_s[r]
        for i in range(jobs):
            work.used_s[rows.job[r, i], j] += ran_s[r] * rows.scale[r] / jobs
    for w in range(len(held.row)):
        if held.row[w] >= 0:
            held.busy_s[w] += ran_s[held.row[w]]


@inner()
def _skip(
    rows: Rows, work: Work, held: Held, spent_s: Floats, clock: Floats, counts: Ints, log: Log, rule: Rule, to: Next,
    chosen: Ints, placed: Ints, speed: Floats, k: int,
) -> None:  # fmt: skip
    """Take the rounds at once that will be as the last one was."""
    like, lasts = _like(rows, work, placed, speed, clock, rule, to)
    if like < 1:
        return
    working, ran_s = those(placed), np.zeros(len(placed))
    for r in working:
        steps = float(floor(speed[r, 0] * rule.round_s)) if rule.parity else speed[r, 0] * rule.round_s
        work.left[rows.job[r, 0]] -= like * steps
        ran_s[r] = like * (steps / speed[r, 0])
    _account(rows, work, held, spent_s, ran_s, chosen)
    counts[SKIPPED] += like
    counts[OFFERED] += like * len(working)
    counts[EXTENDED] += like * len(working)
    log.repeats[k] += like
    log.length_s[k] = lasts
    clock[NOW] += like * lasts
    clock[ROUND_END] = clock[NOW]
