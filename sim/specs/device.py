"""A device of the catalog: peak rates, memory, links and price, each with its source."""

from typing import Annotated

from pydantic import Field

from sim.specs.fields import real, spec, whole

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]


@spec
class Sourced:
    """A number and where it was read."""

    value: Annotated[float, real(0.0, 1e18)]
    source: Text


@spec
class Device:
    """One accelerator as its makers describe it (vendor peaks are dense rates, links one direction).

    `peak_bf16_flop_per_s` is the 16-bit tensor rate (fp16 where bf16 does not exist).
    `power_w` is the power cap, `idle_power_w` the draw without work.
    """

    name: Text
    title: Text
    vendor: Text
    sms: Sourced
    boost_hz: Sourced
    peak_bf16_flop_per_s: Sourced
    memory_bytes: Sourced
    memory_bytes_per_s: Sourced
    l2_bytes: Sourced
    power_w: Sourced
    idle_power_w: Sourced | None = None
    intra_bytes_per_s: Sourced
    inter_bytes_per_s_per_node: Sourced
    gpus_per_node: Annotated[int, whole(1, 72)] = 8
    usd_per_gpu_hour: Sourced | None = None
    price_date: str | None = None
