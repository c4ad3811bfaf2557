"""How often to save training state, what it costs and what failures leave of a run (CheckFreq, FAST '21)."""

from sim.checkpointing.plan import Advice, Choice, plan
from sim.checkpointing.times import Times

__all__ = ["Advice", "Choice", "Times", "plan"]
