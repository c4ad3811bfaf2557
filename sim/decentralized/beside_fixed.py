"""What a controller costs beside the best theta that stays as it is, which nobody knows beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.decentralized.accuracy import AccuracyModel
from sim.decentralized.laws import law
from sim.decentralized.setting import Decentralized
from sim.decentralized.simulate import simulate
from sim.specs.arguments import checked


@dataclass(frozen=True)
class BesideFixed:
    """A controller's trainings, one for each seed, beside the same training with one theta.

    `best_theta`: of those that lose no more accuracy than is borne the one of the least traffic, None where all lose
    more. `times`: traffic (with models that travel) over that of the best theta, for which none travel; empty where
    there is none. `final_thetas`, `savings` (traffic of BSP over theirs) and `bearable` are of each seed.
    """

    setting: Decentralized
    best_theta: float | None
    times: tuple[float, ...]
    final_thetas: tuple[float, ...]
    savings: tuple[float, ...]
    bearable: tuple[bool, ...]


@checked
def beside_fixed(setting: Decentralized, model: AccuracyModel, seeds: Sequence[int] = range(5)) -> BesideFixed:
    """Return what the controller of a setting costs over the best fixed theta of its list, with each of some seeds.

    Raises:
        InputError: the setting has partitions that fail or links that change, or short runs of another algorithm.
    """
    fixed = {
        theta: law(_at(setting, theta), model.sent_fraction(theta, setting.skew)).traffic_bytes
        for theta in setting.thetas
        if model.accuracy_loss(theta, setting.skew).value <= setting.objective.tolerated
    }
    best = min(fixed, key=fixed.__getitem__, default=None)
    found = [simulate(setting.with_(seed=seed), model) for seed in seeds]
    return BesideFixed(
        setting=setting,
        best_theta=best,
        times=() if best is None else tuple(one.traffic_bytes / fixed[best] for one in found),
        final_thetas=tuple(one.final_theta for one in found),
        savings=tuple(one.saving or 0.0 for one in found),
        bearable=tuple(bool(one.bearable) for one in found),
    )


def _at(setting: Decentralized, theta: float) -> Decentralized:
    return setting.with_(controller="fixed", theta=theta, travel_every=0)
