"""Whether devices wait for data: laws and processes of the input pipeline (DS-Analyzer, CoorDL, arXiv 2007.06775)."""

from sim.loading.coordinated import Coordinated, simulate_coordinated
from sim.loading.predict import Prediction, predict
from sim.loading.processes import Loader, Span
from sim.loading.simulate import Simulated, simulate
from sim.loading.study import Study, hit_shares, study
from sim.loading.whatif import WhatIf, what_if

__all__ = [
    "Coordinated",
    "Loader",
    "Prediction",
    "Simulated",
    "Span",
    "Study",
    "WhatIf",
    "hit_shares",
    "predict",
    "simulate",
    "simulate_coordinated",
    "study",
    "what_if",
]
