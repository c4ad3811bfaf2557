"""Precision recipes: on which tensor units a product runs, and what storing and casting its operands costs."""

from typing import Annotated

from pydantic import Field

from sim.specs.device import Rate, Sourced, Text
from sim.specs.fields import spec


@spec
class Directions:
    """The tensor units of a linear layer's three products: forward, input gradient, weight gradient."""

    forward: Rate
    dgrad: Rate
    wgrad: Rate
    source: Text


@spec
class Precision:
    """What one recipe changes about the products of linear layers; all else stays as `activation_bytes` say.

    Per element of an operand of such a product: `element_bytes` and `scale_bytes_per_element` as the units
    read it, and `cast_bytes_per_element`, memory traffic of making it from 16 bit once, in every layout that its
    uses need, at `cast_rate` of the rate of element-wise kernels (left out: all of it). `weight_copy_bytes` per
    parameter are held beside the 16-bit weights (0: none). A 16-bit recipe casts nothing and keeps no copy.
    `activation_bytes` are those of a weight, an activation, a gradient of one and a message element, `master_bytes`
    those of the fp32 copy of a weight that the optimizer updates (0: the weight is fp32).
    """

    name: Text
    title: Text
    gemm: Directions
    element_bytes: Sourced
    scale_bytes_per_element: Sourced
    cast_bytes_per_element: Sourced
    weight_copy_bytes: Sourced
    activation_bytes: Sourced
    master_bytes: Sourced
    cast_rate: Sourced | None = None
    note: Annotated[str, Field(max_length=1_000, description="text of at most 1000 characters")] = ""

    @property
    def operand_bytes(self) -> float:
        """Bytes of one operand element with its share of block scales."""
        return self.element_bytes.value + self.scale_bytes_per_element.value
