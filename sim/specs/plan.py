"""How the training step is spread over the devices, and the rules that a spread must keep."""

from dataclasses import dataclass, field, fields
from math import gcd
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from sim.specs.arguments import checked
from sim.specs.blocks import RECURRENT
from sim.specs.cluster import Cluster
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.model import Model
from sim.specs.pipelines import PIPELINES, Pipeline
from sim.specs.rules import RULES
from sim.specs.spread import Spread
from sim.units import many

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
"""By how much they repeat, least first."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[tuple(PIPELINES)]
ProductKernel = Literal["library", "task-mapped"]
RankOrder = Literal["tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "dp-tp-cp-pp", "pp-tp-cp-dp"]


OF_MEGATRON = "fused_wgrad", "tp_overlap", "core_modules"
"""What is on where it is left out with framework megatron, and off with torch."""

ON_HOST: dict[str, object] = {"precision": "fp32", "framework": "torch", **dict.fromkeys(OF_MEGATRON, False)}
"""What a plan leaves out on host processors: torch's own training in fp32."""

PER_STAGE = ("tp", "dp", "micro_batch", "zero", "recompute", "recompute_layers", "sequence_parallel", "offload")
"""What every one of a plan's `stages` says of itself."""

Ratio = Annotated[float, real(0.0, 1.0)]


@spec
class Offload:
    """Shares of what is kept in host memory and copied when it is needed (Mist, arXiv 2503.19050).

    `optimizer`: fp32 master weights and moments. `activations`: what the layers save in a forward for its backward.
    `weights`: the layers' weights as passes need them, sharded with ZeRO-3. `gradients`: the layers' summed gradients.

    Raises:
        InputError: a share is not from 0 to 1.
    """

    optimizer: Ratio = 0.0
    activations: Ratio = 0.0
    weights: Ratio = 0.0
    gradients: Ratio = 0.0

    @property
    def used(self) -> bool:
        """Whether anything is copied."""
        return max(self.optimizer, self.activations, self.weights, self.gradients) > 0


@spec
class StagePlan:
    """One pipeline stage of its own degrees and memory techniques, on tp x dp (x cp) devices (Mist, section 3).

    Without layers the first stage holds the embedding alone, the last one the head, any other passes on what it gets.
    `recompute_layers` of its layers recompute, all where it is left out; dp x micro_batch is the same for all stages.

    Raises:
        InputError: a value is out of range.
    """

    layers: Annotated[int, whole(0, 16_384)]
    tp: Annotated[int, whole(1, 4_096)] = 1
    dp: Annotated[int, whole(1, 1_000_000)] = 1
    micro_batch: Annotated[int, whole(1, 100_000)] = 1
    zero: Annotated[int, whole(0, 3)] = 0
    recompute: Recompute = "none"
    recompute_layers: Annotated[int, whole(1, 16_384)] = DERIVED
    sequence_parallel: bool = DERIVED
    offload: Offload = Offload()


@spec
class Plan:
    """Degrees and memory techniques of one training step.

    `dp` may be left out (all devices that tp, pp and cp leave); `schedule` defaults to none, 1f1b or interleaved by pp
    and virtual_stages; `sequence_parallel` to on with tp > 1. `zero` shards over the data-parallel ranks (cp ranks
    among them): 1 optimizer, 2 + gradients, 3 + parameters (ZeRO, arXiv 1910.02054); `fsdp_shard` of them hold one
    copy, the others repeat it (HSDP). `recompute` selective repeats, with framework megatron, core attention that
    stores its scores, else the norms before MLA and experts, MLA's products up from the latents and the experts'
    activation (of plain dense layers nothing). Experts spread over `ep` of the tp x cp x dp ranks of a stage, each
    split `etp` ways. `rank_order` names the axes, innermost first. `stage_layers`: layers per model chunk where they
    are not spread evenly. `compiled`: torch.compile fuses what is memory bound; `cuda_graphs`: graphs replay the
    kernels of the passes, so that no host issues them; `layer_graphs`: those of Megatron-Core's layers alone, but for
    what goes to experts and runs there (its scopes attn, mlp, mamba, moe_router and moe_preprocess); `fused_wgrad`:
    products add weight gradients to the sum themselves (Megatron-LM's gradient accumulation fusion); `scatter_gather`:
    tensor-parallel ranks send a part of a pipeline message each (arXiv 2104.04473, section 4.1); `tp_overlap`: the
    backward pass's tensor-parallel collectives run beside products (Megatron-LM's asynchronous reduction since late
    2021; off, every one is waited for); `tp_comm_overlap`: what sequence parallelism gathers and scatters around dense
    MLPs, attention but MLA's, and state spaces runs in pieces with the products (Megatron-LM's --tp-comm-overlap).
    `token_dispatcher`: a token goes to every expert that it is for (alltoall), or once to every rank of them (DeepEP;
    HybridEP, whose ranks tell each other which tokens go where and send the weights of all experts with each).
    `fused_experts`: experts' products activate and cast what they give themselves (Transformer Engine's grouped MLP of
    2026, for mxfp8). `ep_overlap`: what experts exchange for one microbatch runs beside the other pass of another one
    (Megatron-LM's --overlap-moe-expert-parallel-comm), as far as passes alternate. `blocking_sends`: both ranks stand
    still while a pipeline message passes between them (DeepSpeed's pipeline engine). `framework`: whose memory law
    holds where they differ: Megatron-LM's, or PyTorch's own as torchtitan runs it (FSDP2's fp32 shards at zero 3,
    selective recompute of every second product, gathered inputs of products kept for the backward). `core_modules`:
    layers are Megatron-Core's (since October 2023), whose Python takes longer to issue kernels than plain layers or
    Megatron-LM's before. `fused_wgrad`, `tp_overlap` and `core_modules` are on by default with framework megatron, off
    with torch. On host processors `precision` and `framework` are by default fp32 and torch, else bf16 (fp16 where a
    device has no bf16) and megatron. `cross_entropy`: Megatron-LM's in place on fp32 logits, PyTorch's by autograd (the
    default of its framework each), or one fused kernel on 16-bit logits (flash-attention's, Liger's).
    `attention_kernel`: fused attention as fast as the profile's (flash: FlashAttention-2, or what the PyTorch of the
    measuring takes: cuDNN's on an H200), FlashAttention before 2 (flash-1, 2022 to mid-2023), FlashAttention-2
    (flash-2), or cuDNN's (cudnn; FlashAttention-3 is about as fast), which Hopper and newer devices have.
    `product_kernel`: whose matrix products run, eager attention's batched ones among them: the vendor's library's, or
    those that task mappings make (Hidet, arXiv 2210.09603), which the profile must have timed. `recurrent_kernel`: how
    LSTM and GRU layers run: cuDNN's way (the inputs of all time steps in one product, one kernel between two products
    of a step), fused kernels that choose the layout too (EcoRNN, arXiv 1805.08899), or as frameworks do by default,
    every operation of a step launched apart. `tempo`: layers that keep fewer bytes for the backward pass (Tempo, arXiv
    2210.10246): GELU its output and a byte, LayerNorm its output, attention on stored scores no output of its dropout,
    which is made again. `optimizer_barrier`: no rank updates before all have reduced their gradients, as clipping by
    the global norm asks; zero-bubble schedules (but PyTorch's) update at once and check afterwards (arXiv 2401.10241,
    section 4), so that a step takes its longest rank span. `offload`: what host memory keeps a share of.
    `recompute_layers`: so many layers of every chunk recompute (all where it is left out; Megatron-LM's
    `recompute_num_layers` with method block). `recompute_experts`: recompute selective of framework megatron repeats
    all that experts do, their router, exchanges and shared ones too (Megatron-LM's module moe). `stages`: every
    pipeline stage with degrees and techniques of its own; tp, dp, micro_batch, zero, recompute and offload are then
    left out here. `software_year`: when the training software was released, as a decimal year (2026.58: August 2026);
    left out it is not known and changes nothing.

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
    cuda_graphs: bool = False
    layer_graphs: bool = False
    fused_wgrad: bool = DERIVED
    scatter_gather: bool = True
    tp_overlap: bool = DERIVED
    tp_comm_overlap: bool = False
    token_dispatcher: Literal["alltoall", "deepep", "hybridep"] = "alltoall"
    fused_experts: bool = False
    ep_overlap: bool = False
    blocking_sends: bool = False
    framework: Literal["megatron", "torch"] = DERIVED
    core_modules: bool = DERIVED
    cross_entropy: Literal["in-place", "autograd", "fused"] = DERIVED
    attention_kernel: Literal["flash", "flash-1", "flash-2", "cudnn"] = "flash"
    product_kernel: ProductKernel = "library"
    recurrent_kernel: Literal["default", "fused", "cudnn"] = "cudnn"
    tempo: bool = False
    optimizer_barrier: bool = DERIVED
    offload: Offload = Offload()
    recompute_layers: Annotated[int, whole(1, 16_384)] = DERIVED
    recompute_experts: bool = False
    stages: Annotated[tuple[StagePlan, ...], Field(max_length=4_096, description="a list of stages")] = ()
    software_year: Annotated[float, real(2015.0, 2100.0)] | None = None
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)
    derived: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def __post_init__(self) -> None:
        assumed, derived = [], []
        if self.stages:
            self._only_stages()
        own = self.framework in (None, "megatron")
        for key, value in {"precision": "bf16", "framework": "megatron", **dict.fromkeys(OF_MEGATRON, own)}.items():
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
            "optimizer_barrier": self.barrier(self.schedule or "none"),
        }
        for key, value in usual.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
                derived.append(key)
                assumed.append(f"plan.{key} = {str(value).lower()} (default)")
        object.__setattr__(self, "assumptions", tuple(assumed))
        object.__setattr__(self, "derived", frozenset(derived))

    def _only_stages(self) -> None:
        """Refuse what stages say themselves, and set pp to their number."""
        defaults = {f.name: f.default for f in fields(self)}
        for name in (*PER_STAGE, "stage_layers", "virtual_stages", "fsdp_shard"):
            if getattr(self, name) != defaults[name]:
                raise InputError(name, getattr(self, name), "left out: plan.stages say it of every stage")
        if self.pp not in (1, len(self.stages)):
            raise InputError("pp", self.pp, f"left out, or the number of plan.stages = {len(self.stages)}")
        object.__setattr__(self, "pp", len(self.stages))

    def barrier(self, schedule: str) -> bool:
        """Return whether no rank would update before all have reduced, were the plan's schedule `schedule`."""
        if self.optimizer_barrier is not None and "optimizer_barrier" not in self.derived:
            return self.optimizer_barrier
        return self.framework == "torch" or PIPELINES[schedule].updates == "together"

    def at(self, stage: int) -> "Plan":
        """Return the plan that gives every stage what `stages` give this one: itself where they are equal."""
        if not self.stages:
            return self
        own = {name: getattr(self.stages[stage], name) for name in PER_STAGE}
        return self.but(stages=(), stage_layers=self.split_stages, **own)

    @property
    def offloads(self) -> bool:
        """Whether any stage keeps something in host memory."""
        return any(s.offload.used for s in self.stages or (self,))

    @property
    def split_stages(self) -> tuple[int, ...]:
        """The layers of every one of `stages`."""
        return tuple(s.layers for s in self.stages)

    def but(self, **changes: object) -> "Plan":
        """Return the plan with some values changed; what had been left out is derived again.

        Raises:
            InputError: a value is out of range.
        """
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name not in self.derived}
        return Plan(**given | changes)

    def suited(self, cluster: Cluster) -> "Plan":
        """Return the plan with what it leaves out as the cluster's devices ask.

        That is `ON_HOST` on host processors, and fp16 where one has no bf16.
        """
        devices = [member.hardware for member in cluster.members]
        usual, where = ON_HOST, "on host processors"
        if not all(device.on_host for device in devices):
            usual, where = {"precision": "fp16"}, "no bf16 on these devices"
            if all(device.bfloat16 for device in devices):
                return self
        changes = {k: v for k, v in usual.items() if k in self.derived}
        if not changes:
            return self
        made = self.but(**changes)
        notes = tuple(f"plan.{k} = {str(v).lower()} ({where})" for k, v in changes.items())
        object.__setattr__(made, "assumptions", notes + made.assumptions)
        return made

    @checked
    def on(self, model: Model, cluster: Cluster) -> "PlacedPlan":
        """Return the plan placed on `cluster` for `model`; raises InputError for the first broken rule."""
        plan = self.suited(cluster)
        if plan.stages:
            return _staged(plan, model, cluster)
        spread = Spread.of(plan, cluster)
        for rule in RULES:
            if rule.broken(model, spread):
                raise rule.error(plan, "plan", model, spread)
        if model.table and (model.table.dtype == "float32") != (plan.precision == "fp32"):
            allowed = f"{'fp32' if plan.precision != 'fp32' else 'one of 16 bit'}: the table is of {model.table.dtype}"
            raise InputError("plan.precision", plan.precision, allowed)
        return PlacedPlan(plan=plan, dp=int(spread.dp), microbatches=int(spread.microbatches))

    def assumed_of(self, model: Model) -> tuple[str, ...]:
        """Return `assumptions`, and which kernels are stated that none of this model's are."""
        held, ignored = "the table holds the kernels of this network", dict[str, str]()
        if self.recurrent_kernel != "cudnn" and (model.table or not set(model.pattern) & set(RECURRENT)):
            ignored["recurrent_kernel"] = held if model.table else "no layer is recurrent"
        if self.cross_entropy == "fused" and model.table:
            ignored["cross_entropy"] = held
        return (*self.assumptions, *(f"plan.{k} = {getattr(self, k)} is ignored: {why}" for k, why in ignored.items()))

    @property
    def pipeline(self) -> Pipeline:
        """What is known of the schedule by its name."""
        return PIPELINES[self.schedule]

    @property
    def order(self) -> str:
        """The schedule whose order the pipeline ranks run: without a pipeline 1F1B is as good as any."""
        return "1f1b" if self.schedule == "none" else self.schedule

    @property
    def rank_of(self) -> tuple[int, ...]:
        """The pipeline rank of every chunk; those of a second copy of the model follow the first's."""
        return self.pipeline.rank_of(self.pp, self.virtual_stages)

    @property
    def copies(self) -> int:
        """Copies of the model that a pipeline trains at once."""
        return self.pipeline.copies

    def split(self, model: Model) -> tuple[int, ...]:
        """Return the layers of every model chunk, in stage order."""
        chunks = self.pp * self.virtual_stages
        return self.stage_layers or self.split_stages or (model.layers // chunks,) * chunks


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
        return sum(self.stage_gpus)

    @property
    def stage_gpus(self) -> tuple[int, ...]:
        """Devices of every pipeline rank's stage."""
        plan = self.plan
        return tuple(s.tp * s.dp * plan.cp for s in plan.stages) or (plan.tp * plan.cp * self.dp,) * plan.pp

    def at(self, stage: int) -> "PlacedPlan":
        """Return what a uniform plan would be that treats every stage like this one."""
        plan = self.plan
        return PlacedPlan(plan.at(stage), plan.stages[stage].dp, self.microbatches) if plan.stages else self

    @property
    def shard(self) -> int:
        """Ranks that share one copy of what ZeRO shards."""
        return self.plan.fsdp_shard or self.dp * self.plan.cp


def _staged(plan: Plan, model: Model, cluster: Cluster) -> PlacedPlan:
    """Return a plan of unequal stages placed on `cluster`; raises InputError for the first broken rule."""
    parts = plan.stages
    gpus = sum(s.tp * s.dp * plan.cp for s in parts)
    if plan.pipeline.chunks > 1 or plan.pipeline.asynchronous:
        raise InputError("plan.schedule", plan.schedule, "one that flushes, of one chunk a rank, with plan.stages")
    if sum(plan.split_stages) != model.layers:
        allowed = f"layers that add up to model.layers = {model.layers}"
        raise InputError("plan.stages", plan.split_stages, allowed)
    if gpus != cluster.gpus:
        each = "tp x dp" if plan.cp == 1 else f"tp x dp x cp {plan.cp}"
        allowed = f"{each} over all stages that add up to {many(cluster.gpus, 'GPU')}"
        raise InputError("plan.stages", many(gpus, "GPU"), allowed)
    samples = [s.dp * s.micro_batch for s in parts]
    for i, n in enumerate(samples):
        if n != samples[0]:
            raise InputError(f"plan.stages.{i}.micro_batch", parts[i].micro_batch, f"dp x micro_batch = {samples[0]}")
    for i in range(len(parts)):
        own = plan.at(i)
        spread = Spread.of(own, cluster, own.tp * own.dp * own.cp * plan.pp)
        for rule in RULES:
            if rule.broken(model, spread):
                path = f"plan.stages.{i}" if rule.knob in PER_STAGE else "plan"
                raise rule.error(own, path, model, spread)
    return PlacedPlan(plan=plan, dp=gcd(*(s.dp for s in parts)), microbatches=plan.global_batch // samples[0])
