"""Bytes of PyTorch's ring attention, counted in its own code on a rank of a fake process group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sim.costs.algebra import Expr, Interpreted
from sim.costs.layers import ring
from sim.costs.layers.attention import core
from sim.costs.layers.ops import Sizes
from sim.costs.layers.structure import Structure
from sim.specs.catalog import models

HEADS, KV_HEADS, WIDTH, TOKENS = 4, 2, 256, 64
ELEMENTS = TOKENS * HEADS * WIDTH


class Traffic(TorchDispatchMode):
    """Adds up what kernels read and write; views and collectives are none."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        alias = [r.alias_info for r in func._schema.returns]
        counted = not any(name in str(func) for name in ("c10d", "_unsafe_view"))
        if counted and not any(a is not None and not a.is_write for a in alias):
            read = () if "like" in str(func) else torch.utils._pytree.tree_leaves((args, kwargs))
            held = [*read, *torch.utils._pytree.tree_leaves(out)]
            self.total += sum(t.numel() * t.element_size() for t in held if isinstance(t, torch.Tensor))
        return out


@contextmanager
def ranks(size: int, rank: int) -> Iterator[Any]:
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def by_heads(*sizes: int) -> torch.Tensor:
    """Return a tensor (batch, heads, tokens, width) laid out by tokens, as a fused kernel returns it."""
    batch, heads, tokens, width = sizes
    return torch.zeros(batch, tokens, heads, width, dtype=torch.bfloat16).transpose(1, 2)


def forward_kernel(query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    with _disable_current_modes():
        return by_heads(*query.shape), torch.zeros(query.shape[:-1])


def backward_kernel(*, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> tuple[Any, ...]:
    with _disable_current_modes():
        return tuple(by_heads(*t.shape) for t in (query, key, value))


class Ring(torch.autograd.Function):
    """Saves what `_scaled_dot_product_flash_attention` saves: its inputs, the context and its row sums."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Any) -> torch.Tensor:
        if group is None:
            out, sums = forward_kernel(query)
        else:
            out, sums = torch_ring._templated_ring_attention(
                group, 2, forward_kernel, query, key, value, is_causal=True
            )
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value, out, sums = ctx.saved_tensors
        back = torch_ring._templated_ring_attention_backward
        found = back(ctx.group, 2, backward_kernel, gradients[0], "grad", query, key, value, out, sums, is_causal=True)
        return *found, None


def saved_bytes(group: Any, repeated: bool) -> int:
    """Return what attention with its output projection saves, each storage once; torchtitan repeats heads before."""
    kept: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        held.append(t.detach())
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    def heads(n: int) -> torch.Tensor:
        return torch.zeros(1, TOKENS, n, WIDTH, dtype=torch.bfloat16, requires_grad=True)

    q, k, v = heads(HEADS), heads(KV_HEADS), heads(KV_HEADS)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 2) if repeated else t for t in (k, v))
    weight = torch.zeros(HEADS * WIDTH, 8, dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(pack, lambda t: t):
        out = Ring.apply(*(t.transpose(1, 2) for t in (q, k, v)), group)  # type: ignore[no-untyped-call]
        out.transpose(1, 2).contiguous().view(TOKENS, -1) @ weight
    return sum(kept.values()) - weight.numel() * 2


def formula(what: Expr, **values: float) -> float:
    """Return the value of an expression with the sizes of these tests."""
    sizes: dict[str, float] = {
        "element_bytes": 2, "micro_batch": 1, "tp": 1, "heads": HEADS, "query_width": HEADS * WIDTH,
        "v_width": HEADS * WIDTH, "kv_columns": KV_HEADS * WIDTH, "compiled": 0, "unfused_compiled": 1, "ring": 1,
    }  # fmt: skip
    return float(Interpreted({"it": what})(sizes | values)["it"])


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (4, 0), (4, 2), (8, 5)])
def test_a_rank_saves_wide_keys_and_the_context_twice(size: int, rank: int) -> None:
    with ranks(size, rank) as group:
        more = saved_bytes(group, repeated=True) - saved_bytes(None, repeated=False)
    assert more == formula(ring.saved(TOKENS), cp=size)


def test_the_last_rank_joins_nothing() -> None:
    with ranks(4, 3) as group:
        assert saved_bytes(group, True) + 2 * ELEMENTS == saved_bytes(None, False) + formula(ring.saved(TOKENS), cp=4)


def traffic(size: int, backward: bool) -> float:
    """Return the bytes that kernels beside attention's move on the last rank."""

    def made() -> torch.Tensor:
        return by_heads(1, HEADS, TOKENS, WIDTH)

    run: Callable[[Any], Any]
    if backward:
        run = lambda group: torch_ring._templated_ring_attention_backward(  # noqa: E731
            group, 2, backward_kernel, made(), "grad", made(), made(), made(), made(),
            torch.zeros(1, HEADS, TOKENS), is_causal=True,
        )  # fmt: skip
    else:
        run = lambda group: torch_ring._templated_ring_attention(  # noqa: E731
            group, 2, forward_kernel, made(), made(), made(), is_causal=True
        )
    with ranks(size, size - 1) as group, Traffic() as seen:
        for _ in range(3 + 2 * backward):
            made()
        made_bytes, seen.total = seen.total, 0
        run(group)
    return seen.total - made_bytes


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_results_are_added_up_in_these_bytes(size: int, backward: bool) -> None:
    kind = Structure.of(models["llama3-8b"]).kinds[0]
    op = {op.name: op for op in core(kind, Sizes(0))}[f"attention {'backward' if backward else 'forward'}"]
    values = {"seq_0": TOKENS * size, "cp": size, "keys_0": 1}
    own = formula(op.bytes, ring=0, **values)
    assert (formula(op.bytes, **values) - own) / ELEMENTS == pytest.approx(traffic(size, backward) / ELEMENTS, rel=0.02)
