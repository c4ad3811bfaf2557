"""A plan from DeepSpeed's JSON configuration."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.plans.reading import ReadPlan, made, quotient
from sim.plans.targets import deepspeed_overlaps
from sim.specs import InputError

NAMES = {
    "tp": "tensor_parallel.autotp_size", "pp": "pipeline.stages", "global_batch": "train_batch_size",
    "micro_batch": "train_micro_batch_size_per_gpu", "zero": "zero_optimization.stage",
    "ep": "expert_parallel.autoep_size", "etp": "expert_parallel.expert_tensor_parallel_size",
}  # fmt: skip
TYPES: dict[type, str] = {int: "a whole number from 1", bool: "true or false", str: "text", float: "a number 0 to 1"}
SILENT = ("zero_optimization.offload_optimizer.pin_memory", "zero_optimization.offload_param.pin_memory")


class Config:
    """A configuration asked by path ("zero_optimization.stage"); what nobody has asked for is `left`."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.asked: set[str] = set(SILENT)

    def get(self, path: str, kind: type, default: Any = None, least: int = 1) -> Any:
        """Return the value at `path` or `default`; raises InputError where it is of another kind."""
        self.asked.add(path)
        held: Any = self.raw
        for n, part in enumerate(path.split(".")):
            if not isinstance(held, Mapping):
                raise InputError(".".join(path.split(".")[:n]), held, "a mapping")
            if part not in held:
                return default
            held = held[part]
        number = kind is float and isinstance(held, int) and not isinstance(held, bool)
        wrong = not (isinstance(held, kind) or number) or (kind is int and (isinstance(held, bool) or held < least))
        if wrong or (kind is float and not 0 <= held <= 1):
            raise InputError(path, held, f"a whole number from {least}" if kind is int else TYPES[kind])
        return held

    def word(self, path: str, among: tuple[str, ...], default: str) -> str:
        """Return the text at `path`; raises InputError where it is none of `among`."""
        value = self.get(path, str, default)
        if value not in among:
            raise InputError(path, value, "one of " + ", ".join(among))
        return str(value)

    def has(self, section: str) -> bool:
        """Return whether a section is there."""
        return section in self.raw

    @property
    def left(self) -> tuple[str, ...]:
        """The paths of values that nobody has asked for."""
        return tuple(path for path in _paths(self.raw) if path not in self.asked)


def _paths(raw: Mapping[str, Any], before: str = "") -> list[str]:
    found: list[str] = []
    for key, value in raw.items():
        path = f"{before}{key}"
        found += _paths(value, f"{path}.") if isinstance(value, Mapping) and value else [path]
    return found


def from_deepspeed(raw: Mapping[str, Any], gpus: int | None = None) -> ReadPlan:
    """Return the plan that a configuration states; gpus: of the whole job, which it does not say.

    Raises:
        InputError: a value is missing, wrong ("auto" among them) or contradicts another.
    """
    config = Config(raw)
    pp = config.get("pipeline.stages", int, 1)
    interval = config.get("pipeline.activation_checkpoint_interval", int, 0, 0)
    if interval > 1:
        path = "pipeline.activation_checkpoint_interval"
        raise InputError(path, interval, "0 or 1: a plan checkpoints every layer by itself")
    checkpoints = config.has("activation_checkpointing")
    full = interval == 1 if pp > 1 else checkpoints
    ep, etp = _experts(config)
    zero = config.get("zero_optimization.stage", int, 0, 0)
    tp = config.get("tensor_parallel.autotp_size", int, 1, 0) or 1
    fields = {
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "etp": etp,
        "sequence_parallel": False,
        "recompute": "full" if full else "none",
        "zero": zero,
        "overlap_dp": config.get("zero_optimization.overlap_comm", bool, zero == 3),
        "blocking_sends": pp > 1,
        "offload": _offload(config, full),
        **_batches(config, tp, pp, gpus),
        **_precision(config),
    }
    found = made(
        fields,
        NAMES,
        config.left,
        "framework: left at its default (nothing says whose layers and kernels run, and so their memory)",
        "" if pp == 1 else "layers per stage: taken as equal (PipelineModule's partition_method says it)",
        "activation_checkpointing: taken as recompute of every layer" if checkpoints and pp == 1 else "",
    )
    if not found.plan.overlap_dp or deepspeed_overlaps(found.plan):
        return found
    waits = "zero_optimization.overlap_comm: without effect here (gradients are reduced after the backward pass)"
    return replace(found, plan=found.plan.but(overlap_dp=False), notes=(*found.notes, waits))


def _batches(config: Config, tp: int, pp: int, gpus: int | None) -> dict[str, Any]:
    """Return the batch sizes and the data-parallel ranks (`runtime/config.py`, `_set_batch_related_parameters`).

    Two of the three settings give the third where the devices are known; of one of them alone a step is one microbatch.
    With AutoTP `train_batch_size` is counted over the tensor-parallel ranks too: each of tp repeats its samples.
    """
    whole = config.get("train_batch_size", int)
    micro = config.get("train_micro_batch_size_per_gpu", int)
    steps = config.get("gradient_accumulation_steps", int)
    if whole is None and micro is None:
        allowed = "required, or train_micro_batch_size_per_gpu: samples of one step"
        raise InputError("train_batch_size", None, allowed)
    if whole is not None:
        whole = quotient("tensor_parallel.autotp_size", whole, tp, "train_batch_size")
    if whole is not None and micro is not None:
        place = "train_micro_batch_size_per_gpu" if steps is None else "gradient_accumulation_steps"
        parts = quotient(place, whole, micro * (steps or 1), "train_batch_size")
        return {"global_batch": whole, "micro_batch": micro, "dp": parts if steps else None}
    if gpus is None:
        missing = "train_batch_size" if whole is None else "train_micro_batch_size_per_gpu"
        raise InputError(missing, None, "required where the devices are not known (a job gives them)")
    dp, steps = quotient("gpus", gpus, tp * pp, "GPUs"), steps or 1
    if whole is None:
        return {"global_batch": micro * steps * dp, "micro_batch": micro, "dp": dp}
    if whole % (steps * dp):
        raise InputError("train_batch_size", whole * tp, f"a multiple of {steps * dp * tp} on {gpus} GPUs")
    return {"global_batch": whole, "micro_batch": whole // (steps * dp), "dp": dp}


def _experts(config: Config) -> tuple[int, int]:
    on = config.get("expert_parallel.enabled", bool, False)
    ep = config.get("expert_parallel.autoep_size", int, 1)
    etp = config.get("expert_parallel.expert_tensor_parallel_size", int, 1)
    return (ep, etp) if on else (1, 1)


def _offload(config: Config, full: bool) -> dict[str, float]:
    optimizer, weights = (
        config.word(f"zero_optimization.offload_{name}.device", ("none", "cpu"), "none") == "cpu"
        for name in ("optimizer", "param")
    )
    ratio = config.get("zero_optimization.offload_optimizer.ratio", float, 1.0)
    activations = config.get("activation_checkpointing.cpu_checkpointing", bool, False)
    return {
        "optimizer": float(ratio) if optimizer else 0.0,
        "weights": float(weights),
        "activations": float(activations and full),
    }


def _precision(config: Config) -> dict[str, str]:
    # runtime/precision_config.py, get_bfloat16_config: the old name counts where the new one is not there.
    section = "bf16" if config.has("bf16") else "bfloat16"
    half, brain = (config.get(f"{name}.enabled", bool, False) for name in ("fp16", section))
    if half and brain:
        raise InputError(f"{section}.enabled", True, "false beside fp16.enabled")
    precision = "fp16" if half else "bf16" if brain else "fp32"
    sums = config.word("data_types.grad_accum_dtype", ("fp32", "fp16", "bf16"), precision)
    return {"precision": precision, "gradient_dtype": "fp32" if sums == "fp32" else "bf16"}
