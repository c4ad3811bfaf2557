"""Measured matmul peaks: which name of the public files speaks for which device of the catalog."""

from calibration.published.public import Public

PEAK_NAMES = {
    "a100-pcie-80gb": "NVIDIA A100 PCIe",
    "a100-sxm-80gb": "NVIDIA A100 SXM",
    "a100-sxm-40gb": "NVIDIA A100 SXM",
    "h100-sxm-80gb": "NVIDIA H100 SXM",
    "h200-sxm-141gb": "NVIDIA H200 SXM",
    "b200": "NVIDIA B200 SXM",
    "b300": "NVIDIA B300 SXM",
    "gb200": "NVIDIA GB200 SXM",
    "mi300x": "AMD MI300X",
}


def measured_peak(public: Public, name: str) -> float:
    """Return the measured matmul peak of a catalog device in FLOP/s; raises InputError if the files have none."""
    return public.peak(PEAK_NAMES[name])
