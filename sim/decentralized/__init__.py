"""Training over partitions of the data that are far apart and unlike: traffic, time, accuracy (arXiv 1910.00189)."""

from sim.decentralized.accuracy import AccuracyModel, Estimate, ShortRun, fit_accuracy, read_runs, selected
from sim.decentralized.beside_fixed import BesideFixed, beside_fixed
from sim.decentralized.communication import KNOBS, Communication
from sim.decentralized.controllers import CONTROLLERS, controller
from sim.decentralized.controllers.base import Controller
from sim.decentralized.laws import Law, law
from sim.decentralized.objective import Objective, Observation
from sim.decentralized.results import Simulated, Travel
from sim.decentralized.setting import Decentralized, Failure
from sim.decentralized.simulate import simulate
from sim.decentralized.traffic import Messages, Sizes
from sim.decentralized.wan import Change, Wan
from sim.decentralized.what_if import WhatIf, what_if

__all__ = [
    "CONTROLLERS",
    "KNOBS",
    "AccuracyModel",
    "BesideFixed",
    "Change",
    "Communication",
    "Controller",
    "Decentralized",
    "Estimate",
    "Failure",
    "Law",
    "Messages",
    "Objective",
    "Observation",
    "ShortRun",
    "Simulated",
    "Sizes",
    "Travel",
    "Wan",
    "WhatIf",
    "beside_fixed",
    "controller",
    "fit_accuracy",
    "law",
    "read_runs",
    "selected",
    "simulate",
    "what_if",
]
