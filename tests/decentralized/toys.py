"""A small table of short runs with known laws, drawn by seed: no accuracy of anything that was trained."""

import numpy as np

from sim.decentralized import KNOBS, Decentralized, ShortRun, Sizes, fit_accuracy

SKEWS = (0.0, 0.5, 1.0)
SIGMA = 0.006


def lost(algorithm, theta, skew):
    """Return the accuracy loss of the toy: nothing IID, under skew with the place of theta on its list."""
    place = KNOBS[algorithm].thetas.index(theta)
    return skew * 0.02 * place**1.5


def rows(algorithm="fedavg", seeds=range(5), sigma=SIGMA, skews=SKEWS, lose=lost):
    """Return short runs of every theta and skew, the noise of seeds about the law."""
    random = np.random.default_rng(7)
    return tuple(
        ShortRun(
            algorithm=algorithm,
            theta=theta,
            skew=skew,
            norm="none",
            data="toy",
            seed=seed,
            steps=500,
            accuracy=float(np.clip(0.9 - lose(algorithm, theta, skew) + sigma * random.standard_normal(), 0, 1)),
            accuracy_loss=lose(algorithm, theta, skew) + sigma * float(random.standard_normal()),
            sent_bytes=1e6,
            sent_fraction=1 / (1 + KNOBS[algorithm].thetas.index(theta)),
        )
        for skew in skews
        for theta in KNOBS[algorithm].thetas
        for seed in seeds
    )


def fitted(algorithm="fedavg", **more):
    """Return the model of such runs."""
    return fit_accuracy(rows(algorithm, **more), algorithm)


def small(**more):
    """Return a training that is simulated in milliseconds."""
    return Decentralized(**({"steps": 400, "sizes": Sizes(parameters=1_000_000), "step_s": 0.1} | more))
