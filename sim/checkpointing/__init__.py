"""How often to save training state, what it costs and what failures leave of a run (CheckFreq, FAST '21)."""

from sim.checkpointing.advice import Advice, Choice, plan
from sim.checkpointing.durations import Times
from sim.checkpointing.failures import Availability, Fleet, availability, mtbf_s
from sim.checkpointing.processes import Checkpointer, Span, Trainer
from sim.checkpointing.simulated import Sample, Simulated, simulate
from sim.checkpointing.state import State, state_of, times

__all__ = [
    "Advice",
    "Availability",
    "Checkpointer",
    "Choice",
    "Fleet",
    "Sample",
    "Simulated",
    "Span",
    "State",
    "Times",
    "Trainer",
    "availability",
    "mtbf_s",
    "plan",
    "simulate",
    "state_of",
    "times",
]
