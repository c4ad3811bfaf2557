"""Small clusters to divide, and what any division of them keeps to."""

import numpy as np

from sim.cluster.state import NO_PAIRS, Floats, Pairs, State

TYPES = ("v100", "p100", "k80")


def a_state(steps_per_s, devices, scale=1, left=1000.0, waited=0.0, weights=1.0, **others) -> State:
    """Return a state of jobs with these steps/s (n, m); what is one number holds for all jobs."""
    rates = np.array(steps_per_s, dtype=float)
    n, m = rates.shape

    def each(value, kind=float):
        return np.broadcast_to(np.array(value, dtype=kind), (n,)).copy()

    return State(
        ids=others.pop("ids", np.arange(n)),
        types=TYPES[:m],
        steps_per_s=rates,
        scale=each(scale, np.int64),
        devices=np.array(devices, dtype=np.int64),
        steps_left=each(left),
        waited_s=each(waited),
        weights=each(weights),
        **{"usd_per_hour": np.ones(m), **others},
    )


def random_state(seed: int, jobs: int = 9, scale: bool = True, pairs: bool = True) -> State:
    """Return a state by chance: a tenth of the throughputs are 0, a type may have no devices."""
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0.5, 100, (jobs, 3)) * (draw.random((jobs, 3)) > 0.1)
    scales = draw.choice([1, 1, 2, 4], jobs) if scale else np.ones(jobs, dtype=np.int64)
    state = a_state(
        rates,
        draw.integers(0, 6, 3),
        scales,
        left=draw.uniform(10, 1e6, jobs),
        waited=draw.uniform(0, 1e5, jobs),
        weights=draw.integers(1, 4, jobs),
        ids=np.sort(draw.choice(1000, jobs, replace=False)),
        usd_per_hour=np.array([3.0, 1.5, 0.5]),
        slack_s=np.where(draw.random(jobs) < 0.5, np.inf, draw.uniform(1e3, 1e6, jobs)),
        entity=draw.integers(0, 2, jobs),
        entity_weights=np.array([1.0, 2.0]),
        pairs=some_pairs(rates, scales, draw) if pairs and jobs > 1 else NO_PAIRS,
    )
    assert state.jobs == jobs
    return state


def some_pairs(rates: Floats, scale: np.ndarray, draw: np.random.Generator) -> Pairs:
    """Return all pairs of equal scale; each job keeps 30 - 90 % of its steps/s, a fifth of them cannot be together."""
    jobs = np.array([(i, j) for i in range(len(rates)) for j in range(i + 1, len(rates)) if scale[i] == scale[j]])
    jobs = jobs.reshape(-1, 2).astype(np.int64)
    kept = draw.uniform(0.3, 0.9, (len(jobs), rates.shape[1], 2))
    there = draw.random((len(jobs), rates.shape[1], 1)) > 0.2
    return Pairs(jobs, rates[jobs].transpose(0, 2, 1) * kept * there)


def assert_within(state: State, shares: Floats, tolerance: float = 1e-7) -> None:
    """Fail unless shares (n + k, m) are none below 0, no job's time is above 1, no type's devices are exceeded."""
    n, pairs = state.jobs, state.pairs.jobs
    assert shares.shape == (n + len(pairs), len(state.types))
    assert (shares >= -tolerance).all()
    time = shares[:n].sum(axis=1)
    for end in (0, 1):
        np.add.at(time, pairs[:, end], shares[n:].sum(axis=1))
    assert (time <= 1 + tolerance).all()
    scale = np.concatenate([state.scale, state.scale[pairs[:, 0]]])
    assert (scale @ shares <= state.devices * state.part + tolerance).all()


def permuted(state: State, order: np.ndarray) -> State:
    """Return the state with its jobs in another order."""
    row = np.argsort(order)
    return State(
        ids=state.ids[order],
        types=state.types,
        steps_per_s=state.steps_per_s[order],
        scale=state.scale[order],
        devices=state.devices,
        steps_left=state.steps_left[order],
        waited_s=state.waited_s[order],
        weights=state.weights[order],
        pairs=Pairs(row[state.pairs.jobs], state.pairs.steps_per_s),
        usd_per_hour=state.usd_per_hour,
        slack_s=None if state.slack_s is None else state.slack_s[order],
        entity=state.entity[order] if len(state.entity) else state.entity,
        entity_weights=state.entity_weights,
    )
