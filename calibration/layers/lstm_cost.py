"""What a training step of a recurrent layer costs in each layout, hoisted or not, as an expression: it chooses.

Products take the time of their FLOP and a part that does not shrink with the batch (small ones wait for the weights),
which differs by layout. A point-wise kernel walks along whole runs of memory: one a sample and gate where features are
innermost, one a feature and gate where the batch is. Seven numbers of a machine are found from a few measured shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibration.few import fit_few
from calibration.layers.layouts import CHOICES, Choice
from calibration.layers.lstm import Sizes
from sim.costs.algebra import Compiled, Expr, compile_expressions, symbol

Floats = NDArray[np.float64]
FITTED = ("launch_s", "flop_s", "rows_half", "columns_half", "element_s", "run_s", "turn_s")
"""Seconds of a launch and of a FLOP; columns at which a product reaches half its rate where features and where the
batch is innermost; seconds of a number and of a run of a point-wise kernel, and of a number laid out otherwise."""
HOST = {"launch_s": 5e-6, "flop_s": 3e-11, "rows_half": 8.0, "columns_half": 8.0, "element_s": 1e-9, "run_s": 1e-8,
        "turn_s": 1e-9}  # fmt: skip
GPU = {"launch_s": 1e-5, "flop_s": 3e-14, "rows_half": 64.0, "columns_half": 64.0, "element_s": 1e-11, "run_s": 1e-11,
       "turn_s": 1e-11}  # fmt: skip
"""About right for a core of a host and for a GPU since 2017: a fit begins here."""


def expression() -> Expr:
    """Return the seconds of forward and backward of a layer (symbols: those of `Sizes`, the choice's and `FITTED`)."""
    seq, batch, inputs, hidden, gates = (symbol(n) for n in ("seq", "batch", "inputs", "hidden", "gates"))
    columns, hoisted = symbol("columns"), symbol("hoisted")
    launch, flop, rows_half, columns_half, element, run, turn = (symbol(n) for n in FITTED)
    half = (1 - columns) * rows_half + columns * columns_half
    wide = gates * hidden

    def product(samples: Expr, inner: Expr) -> Expr:
        return launch + 2 * (samples + half) * inner * wide * flop

    of_inputs = hoisted * product(seq * batch, inputs) + (1 - hoisted) * seq * product(batch, inputs)
    of_state = seq * product(batch, hidden)
    to_weights = product(seq * batch, inputs) + product(seq * batch, hidden)
    runs = gates * ((1 - columns) * batch + columns * hidden)
    between = seq * (launch + batch * hidden * element + runs * run)
    turned = columns * seq * batch * hidden * turn
    return 2 * (of_inputs + of_state + between) + to_weights + turned


@lru_cache(maxsize=1)
def _compiled() -> Compiled:
    return compile_expressions({"seconds": expression()})


@dataclass(frozen=True)
class LayerCosts:
    """Costs of a cell's layers on a machine: `fitted` has the values of `FITTED`; sigma_log: errors of log seconds."""

    fitted: Mapping[str, float]
    sigma_log: float = 0.0

    def seconds(self, sizes: Sizes, choice: Choice) -> float:
        """Return the predicted seconds of forward and backward."""
        given = {name: float(value) for name, value in vars(sizes).items()}
        given |= {"columns": float(choice.layout.columns), "hoisted": float(choice.hoisted)}
        return float(_compiled()(given | dict(self.fitted))["seconds"])

    def pick(self, sizes: Sizes) -> Choice:
        """Return the choice that is predicted fastest: what `calibration.layers.lstm` takes as `choice`."""
        return min(CHOICES, key=lambda choice: self.seconds(sizes, choice))


def fit(measured: Sequence[tuple[Sizes, Choice, float]], start: Mapping[str, float]) -> LayerCosts:
    """Return the costs that explain measured seconds best, from `start` on."""

    def seconds(fitted: Mapping[str, float]) -> list[float]:
        made = LayerCosts(fitted)
        return [made.seconds(sizes, choice) for sizes, choice, _ in measured]

    return LayerCosts(*fit_few(start, seconds, [taken for _, _, taken in measured]))
