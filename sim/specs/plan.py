"""How the training step is spread over the devices, and the rules that a spread must keep."""

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from pydantic import Field

from sim.specs.arguments import checked
from sim.specs.cluster import Cluster
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.model import Model
from sim.specs.rules import RULES, TWO_COPIES, V_SHAPED, Spread

Recompute = Literal["none", "selective", "full"]
Schedule = Literal[
    "none", "gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb", "zbv",
    "v-half", "v-min", "dualpipe", "dualpipev", "chimera", "pipedream", "2bw",
]  # fmt: skip
RankOrder = Literal["tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "dp-tp-cp-pp", "pp-tp-cp-dp"]


ON_HOST: dict[str, object] = {"precision": "fp32", "framework": "torch", "fused_wgrad": False}
"""What a plan leaves out on host processors: torch's own training in fp32."""

Ratio = Annotated[float, real(0.0, 1.0)]


@spec
class Offload:
    """Shares of what is kept in host memory and copied when it is needed (Mist, EuroSys 2025).

    `optimizer`: fp32 master weights and moments. `activations`: what the layers save in a forward for its backward.

    Raises:
        InputError: a share is not from 0 to 1.
    """

    optimizer: Ratio = 0.0
    activations: Ratio = 0.0

    @property
    def used(self) -> bool:
        """Whether anything is copied."""
        return self.optimizer > 0 or self.activations > 0


@spec
class Plan:
    """Degrees and memory techniques of one training step.

    `dp` may be left out (all devices that tp, pp and cp leave); `schedule` defaults to none, 1f1b or
    interleaved by pp and virtual_stages; `sequence_parallel` to on with tp > 1. `zero` shards over
    the data-parallel ranks (cp ranks among them): 1 optimizer, 2 + gradients, 3 + parameters (ZeRO,
    arXiv 1910.02054); `fsdp_shard` of them hold one copy, the others repeat it (HSDP). Experts spread over `ep`
    of the tp x cp x dp ranks of a stage, each split `etp` ways. `rank_order` names the axes, innermost first.
    `stage_layers`: layers per model chunk where they are not spread evenly. `compiled`: torch.compile fuses what
    is memory bound; `fused_wgrad`: products add weight gradients to the sum themselves (Megatron-LM's gradient
    accumulation fusion); `scatter_gather`: tensor-parallel ranks send a part of a pipeline message each
    (arXiv 2104.04473, section 4.1); `tp_overlap`: the backward pass's tensor-parallel collectives run beside products
    (Megatron-LM's asynchronous reduction since late 2021; off, every one is waited for). `blocking_sends`: both ranks
    stand still while a pipeline message passes between them (DeepSpeed's pipeline engine). `framework`: whose memory
    law holds where they differ: Megatron-LM's, or PyTorch's own as torchtitan runs it (FSDP2's fp32 shards at zero 3,
    selective recompute of every second product). On host processors `precision`, `framework` and `fused_wgrad` are by
    default fp32, torch and off, else bf16, megatron and on.
    `cross_entropy`: Megatron-LM's in place on fp32 logits, PyTorch's by autograd (the default of its framework each),
    or one fused kernel on 16-bit logits (flash-attention's, Liger's). `optimizer_barrier`: no rank updates before all
    have reduced their gradients, as clipping by the global norm asks; zero-bubble schedules (but PyTorch's)
    update at once and check afterwards (arXiv 2401.10241, section 4), so that a step takes its longest rank span.
    `offload`: what host memory keeps a share of. `software_year`: when the training software was released, as a decimal
    year (2026.58: August 2026); left out it is not known and changes nothing.

    Raises:
        InputError: a value is out of range.
    """

    tp: Annotated[int, whole(1, 4_096)] = 1
    pp: Annotated[int, whole(1, 4_096)] = 1
    virtual_stages: Annotated[int, whole(1, 256)] = 1
    dp: Annotated[int, whole(1, 1_000_000)] = DERIVED
    cp: Annotated[int, whole(1, 4_096)] = 1
    ep: Annotated[int, whole(1, 65_536)] = 1
    etp: Annotated[int, whole(1, 4_096)] = 1
    fsdp_shard: Annotated[int, whole(1, 1_000_000)] = DERIVED
    rank_order: RankOrder = "tp-cp-dp-pp"
    stage_layers: Annotated[tuple[int, ...], Field(max_length=16_384, description="a list of whole numbers")] = DERIVED
    sequence_parallel: bool = DERIVED
    global_batch: Annotated[int, whole(1, 10_000_000)]
    micro_batch: Annotated[int, whole(1, 100_000)] = 1
    schedule: Schedule = DERIVED
    microbatch_group_size: Annotated[int, whole(1, 10_000_000)] = DERIVED
    recompute: Recompute = "none"
    zero: Annotated[int, whole(0, 3)] = 0
    optimizer: Literal["adam"] = "adam"
    gradient_dtype: Literal["fp32", "bf16"] = "fp32"
    overlap_dp: bool = True
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"] = DERIVED
    compiled: bool = False
    fused_wgrad: bool = DERIVED
    scatter_gather: bool = True
    tp_overlap: bool = True
    blocking_sends: bool = False
    framework: Literal["megatron", "torch"] = DERIVED
    cross_entropy: Literal["in-place", "autograd", "fused"] = DERIVED
    optimizer_barrier: bool = DERIVED
    offload: Offload = Offload()
    software_year: Annotated[float, real(2015.0, 2100.0)] | None = None
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)
    derived: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def __post_init__(self) -> None:
        assumed, derived = [], []
        for key, value in {"precision": "bf16", "framework": "megatron", "fused_wgrad": True}.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
                derived.append(key)
        if self.precision == "fp32" and self.gradient_dtype != "fp32":
            raise InputError("gradient_dtype", self.gradient_dtype, "fp32 with precision fp32")
        usual: dict[str, object] = {
            "schedule": "none" if self.pp == 1 else "interleaved" if self.virtual_stages > 1 else "1f1b",
            "sequence_parallel": self.tp > 1,
            "microbatch_group_size": self.pp,
            "cross_entropy": "autograd" if self.framework == "torch" else "in-place",
            "optimizer_barrier": self.framework == "torch"
            or self.schedule is None
            or not self.schedule.startswith(("zb", "pipedream", "2bw")),
        }
        for key, value in usual.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
                derived.append(key)
                assumed.append(f"plan.{key} = {str(value).lower()} (default)")
        object.__setattr__(self, "assumptions", tuple(assumed))
        object.__setattr__(self, "derived", frozenset(derived))

    def but(self, **changes: object) -> "Plan":
        """Return the plan with some values changed; what had been left out is derived again.

        Raises:
            InputError: a value is out of range.
        """
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name not in self.derived}
        return Plan(**given | changes)

    def suited(self, cluster: Cluster) -> "Plan":
        """Return the plan with what it leaves out as the cluster's devices ask: `ON_HOST` on host processors."""
        changes = {k: v for k, v in ON_HOST.items() if k in self.derived}
        if not changes or not all(member.hardware.on_host for member in cluster.members):
            return self
        made = self.but(**changes)
        notes = tuple(f"plan.{k} = {str(v).lower()} (on host processors)" for k, v in changes.items())
        object.__setattr__(made, "assumptions", notes + made.assumptions)
        return made

    @checked
    def on(self, model: Model, cluster: Cluster) -> "PlacedPlan":
        """Return the plan placed on `cluster` for `model`; raises InputError for the first broken rule."""
        plan = self.suited(cluster)
        spread = Spread.of(plan, cluster)
        for rule in RULES:
            if rule.broken(model, spread):
                raise InputError(f"plan.{rule.knob}", getattr(plan, rule.knob), rule.allowed(model, spread))
        if model.table and (model.table.dtype == "float32") != (plan.precision == "fp32"):
            allowed = f"{'fp32' if plan.precision != 'fp32' else 'one of 16 bit'}: the table is of {model.table.dtype}"
            raise InputError("plan.precision", plan.precision, allowed)
        return PlacedPlan(plan=plan, dp=int(spread.dp), microbatches=int(spread.microbatches))

    @property
    def rank_of(self) -> tuple[int, ...]:
        """The pipeline rank of every chunk; those of a second copy of the model follow the first's."""
        up = tuple(range(self.pp))
        return up + up[::-1] if self.schedule in V_SHAPED + TWO_COPIES else up * self.virtual_stages

    @property
    def copies(self) -> int:
        """Copies of the model that a pipeline trains at once."""
        return 2 if self.schedule in TWO_COPIES else 1

    def split(self, model: Model) -> tuple[int, ...]:
        """Return the layers of every model chunk, in stage order."""
        chunks = self.pp * self.virtual_stages
        return self.stage_layers or (model.layers // chunks,) * chunks


@dataclass(frozen=True)
class PlacedPlan:
    """A legal plan with its derived numbers."""

    plan: Plan
    dp: int
    microbatches: int

    @property
    def stages(self) -> int:
        """Model chunks over all pipeline ranks."""
        return self.plan.pp * self.plan.virtual_stages

    @property
    def gpus(self) -> int:
        """Devices in use."""
        return self.plan.tp * self.plan.cp * self.plan.pp * self.dp

    @property
    def shard(self) -> int:
        """Ranks that share one copy of what ZeRO shards."""
        return self.plan.fsdp_shard or self.dp * self.plan.cp
