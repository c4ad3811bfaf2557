"""Any torch module as a layer table, by tracing on fake tensors."""

from calibration.tracing.trace import flop, trace

__all__ = ["flop", "trace"]
