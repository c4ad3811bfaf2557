"""Low-rank adapters (LoRA, arXiv 2106.09685): on which products they may stand, and in which networks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.specs.blocks import Block
    from sim.specs.model import Model

ADAPTED = {
    "": (),
    "qkv": ("qkv",),
    "attention": ("qkv", "attention out"),
    "all": ("qkv", "attention out", "mlp up", "mlp down"),
}
"""Products that have an adapter (`Model.adapters_on`), by their names in `sim.costs.layers`."""

LETTERS = "TWXYN*-E"
"""Of layers that may have some, or lie between such that do."""


def wrong(model: "Model") -> Iterator[tuple[str, bool, str]]:
    """Yield field, whether it is wrong, and what it may be, of a model's adapters."""
    some = model.adapter_rank > 0
    other = bool(model.table) or model.kv_lora_rank > 0 or model.mtp_layers > 0
    strange = other or model.family not in ("decoder", "encoder") or bool(set(model.pattern) - set(LETTERS))
    yield "adapter_rank", some and strange, "0 but for stacks of attention, dense MLPs and experts"
    yield "adapter_rank", model.adapter_rank > model.hidden, f"at most hidden = {model.hidden}"
    fits = "qkv or attention: experts have no adapters"
    yield "adapters_on", some and model.adapters_on == "all" and model.has_experts, fits


def notes(model: "Model") -> Iterator[str]:
    """Yield what is assumed of a model's adapters."""
    if model.adapter_rank:
        yield "adapters: what ranks of tp exchange of their columns is left out; FSDP holds the rest in 16 bits"


def columns(block: "Block") -> dict[str, int]:
    """Return by product of a layer that has an adapter the columns that it reads and makes."""
    m, h = block.model, block.model.hidden
    attention, width = block.mixer == "attention", block.ffn if block.mlp == "dense" else 0
    held = {
        "qkv": h + m.query_width + 2 * m.kv_width if attention else 0,
        "attention out": block.v_width + h if attention else 0,
        "mlp up": h + (2 if m.gated_mlp else 1) * width if width else 0,
        "mlp down": width + h if width else 0,
    }
    return {product: held[product] for product in ADAPTED[m.adapters_on if m.adapter_rank else ""]}
