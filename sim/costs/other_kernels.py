"""Times of attention and scans by kernels, or on devices, that a profile has not timed, over those it has."""

from sim.costs.kernels import BOTH
from sim.costs.profile import Profile, load_profile
from sim.specs.catalog import device as catalog_device
from sim.specs.cluster import Cluster
from sim.specs.fields import InputError

ATTENTION_KERNELS = {"flash-1": 1.8, "flash-2": 1.0, "cudnn": 1 / 1.5}
"""Time of a fused attention kernel over that of FlashAttention-2's. flash-1: FlashAttention-2 is 1.3 to 2.5 times as
fast as FlashAttention in Triton (arXiv 2307.08691, section 4.1); the geometric mean of the two. cudnn: 1.2 to 1.7 times
as fast on an H100 (flash-attention's repository, `assets/flash3_fp16_fwd.png`, heads of 64, 128 and 256 columns), whose
geometric mean is 1.5, and 1.4 to 1.9 times on an H200 (samples of profile h200-sxm-141gb); FlashAttention-3 1.2 to 2.1
times (the same figure)."""


def attention_time(kernel: str, cluster: Cluster) -> float:
    """Return the time of a fused attention kernel (`Plan.attention_kernel`) over that of the profile's own.

    Those of Blackwell's public rates are cuDNN's, all others FlashAttention-2's where the profile does not say so.

    Raises:
        InputError: cuDNN's on a device before Hopper, where nobody has shown them to be faster.
    """
    if kernel == "flash":
        return 1.0
    device, held = cluster.hardware, load_profile(cluster.profile).model_of(("attention", "forward"))
    if kernel == "cudnn" and not device.since_hopper:
        raise InputError("plan.attention_kernel", kernel, f"flash, flash-1 or flash-2 on {device.title}: before Hopper")
    own = "cudnn" if held.implementation == "cudnn" or "fp4" in device.rates else "flash-2"
    return ATTENTION_KERNELS[kernel] / ATTENTION_KERNELS[own]


HOPPER = "h100-sxm-80gb"
"""Device, and profile of it, whose attention speaks for what products of scans reach."""
HOPPER_MEMORY = "h200-sxm-141gb"
"""Hopper with the memory beside which scans of newer devices were timed."""
SCAN_KEYS = 256
"""Tokens of a chunk at which rates are compared (state-spaces/mamba's own)."""
SCAN_HEAD = 64
"""Columns of its heads there."""


def scan_times(cluster: Cluster) -> dict[str, float]:
    """Return the time of a scan's products over that of the device's fused attention, and of what its backward pass
    moves over what the memory takes, by symbol name.

    Mamba-2's kernels are written in Triton, with tiles that leave the matrix units idle that came after Hopper. Nobody
    has published a scan of it on those; one of Mamba-3, in Triton too, took on a GB200 0.75 times as long forward as on
    an H200, and of its two backward kernels the one that the compiler did not fail 1.02 times (state-spaces/mamba issue
    904). So forward, products are as fast per SM and clock as an H100's attention, which scans there agree with
    (`tests/costs/test_layers.py`); backward all takes as long as on an H200.
    """
    device = cluster.hardware
    if "fp4" not in device.rates:
        return {"scan_forward": 1.0, "scan_backward": 1.0, "scan_traffic": 1.0}
    hopper, memory = (catalog_device(name) for name in (HOPPER, HOPPER_MEMORY))
    own, theirs = (_short_rates(load_profile(name)) for name in (cluster.profile, HOPPER))
    clocks = device.sms.value * device.boost_hz.value / (hopper.sms.value * hopper.boost_hz.value)
    return {
        "scan_forward": max(1.0, own["forward"] / theirs["forward"] / clocks),
        "scan_backward": max(1.0, own["backward"] / theirs["backward"]),
        "scan_traffic": max(1.0, device.memory_bytes_per_s.value / memory.memory_bytes_per_s.value),
    }


def _short_rates(profile: Profile) -> dict[str, float]:
    """Return by direction the FLOP/s of fused attention over `SCAN_KEYS` keys by heads of `SCAN_HEAD` columns."""
    held = {direction: profile.model_of(("attention", direction)).parameters for direction in BOTH}
    return {
        d: p["rate"] * SCAN_KEYS / (SCAN_KEYS + p["s0"]) * SCAN_HEAD / (SCAN_HEAD + p.get("d0", 0.0))
        for d, p in held.items()
    }
