"""What PyTorch's pipelining runtime keeps beyond a pass's own tensors, laid over a simulated memory timeline.

torch 2.13, `distributed/pipelining/stage.py` and `_backward.py`:
- a buffer of its own for each microbatch's message in each direction, for the whole step; what a stage receives is
  then in no microbatch's activations. Between two stages on one rank it is the tensor itself, of this step or the last;
- every stage's output from its forward to its backward, logits too;
- the gradient of every received input from its backward to the end of the step;
- from I to W the gradients of the outputs of all products and norms; the graph above the last product goes with I.
  The first stage's I does nothing, its W the whole backward.
"""

import numpy as np
from numpy.typing import NDArray

from sim.engine.memory import MemoryTimeline
from sim.schedules import Action, Kind, Schedule
from sim.specs import Model, PlacedPlan
from sim.specs.catalog import precision

FP32_BYTES = 4


class Kept:
    """The runtime's memory on the ranks of a plan's pipeline (bytes)."""

    def __init__(self, model: Model, placed: PlacedPlan, order: Schedule) -> None:
        plan = placed.plan
        self.order, self.microbatches = order, placed.microbatches
        rows = plan.micro_batch * model.seq
        element = precision(plan.precision).activation_bytes.value
        self.hidden = element * rows * model.hidden / (plan.tp if plan.sequence_parallel else 1)
        self.logits = element * rows * model.vocab / plan.tp
        self.softmax = FP32_BYTES * rows * model.vocab / plan.tp
        # Of qkv and up on a rank; of out, down and both norms.
        self.layer = element * rows * ((3 * model.hidden + model.ffn) / plan.tp + 4 * model.hidden)
        self.layers = plan.split(model)
        self.stays = plan.offload.activations == 1  # the simulator has what a stage receives in host memory too

    def peak_bytes(self, memory: MemoryTimeline) -> float:
        """Return a rank's peak with what the runtime keeps."""
        change: NDArray[np.float64] = np.zeros(2 * len(memory.actions))
        for i, action in enumerate(memory.actions):
            change[2 * i], change[2 * i + 1] = self._change(action)
        own = [s for s, r in enumerate(self.order.rank_of) if r == memory.rank]
        ends = sum((s != 0) + (s != self.order.stages - 1) for s in own)
        buffers = ends * self.microbatches * self.hidden - memory.fixed.get("communication", 0.0)
        return float((memory.total + np.cumsum(change)).max() + buffers)

    def _change(self, action: Action) -> tuple[float, float]:
        """Return what an action adds at its start and at its end, beyond what the simulator says."""
        stage, kind = action.stage, action.kind
        if kind not in (Kind.F, Kind.I, Kind.W, Kind.B):
            return 0.0, 0.0
        first, last = stage == 0, stage == self.order.stages - 1
        received = 0.0 if first else self.hidden
        gone = 0.0 if self.stays else received
        output = self.logits if last else 0.0 if self._local(stage) else self.hidden
        if kind is Kind.F:
            return output - gone, 0.0
        at_end = 0.0
        if kind is Kind.B or (kind is Kind.W) == first:  # when output and input go
            at_end -= output - gone
        if kind is not Kind.W and not first and not self._local(stage - 1):
            at_end += received
        if kind is not Kind.B and not first:
            at_end += self._between(stage) * (1 if kind is Kind.I else -1)
        return 0.0, at_end

    def _local(self, stage: int) -> bool:
        """Whether the stage after it is on the same rank."""
        return self.order.rank_of[stage] == self.order.rank_of[stage + 1]

    def _between(self, stage: int) -> float:
        """Return what I leaves for W beyond the activations."""
        own = self.layers[stage] * self.layer
        if stage == self.order.stages - 1:
            return own + self.hidden + self.logits - self.softmax
        return own - self.hidden  # the gradient of the output is in the buffer that it was received into
