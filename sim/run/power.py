"""What a device draws on average while it trains.

Mean draw = idle + (cap - idle) x utilisation. While a device computes it draws its cap; in exposed communication,
in pipeline bubbles and while it waits for data it draws half of it; idle is the catalog's. The half
is the 50 % of the cap at the boundary between iterations that Patel et al. 2023 (POLCA, arXiv 2308.12908) measured
for GPT-NeoX on A100s. That computing draws the cap errs on the high side: the maximum
of an H100 node was 8.4 kW of the rated 10.2 kW (Latif et al. 2024, arXiv 2412.08602). Published energy of training
(Llama 2, arXiv 2307.09288, table 2; Llama 3 model card) multiplies GPU-hours by the cap alone.
"""

from dataclasses import dataclass

from sim.engine.step import Step
from sim.units import digits3, percent

COMPUTING = ("compute", "recompute", "optimizer")
"""Terms of the breakdown in which the device computes; all others wait or communicate."""

WAITING_SHARE = 0.5
POLCA = "POLCA, arXiv 2308.12908, A100"


@dataclass(frozen=True)
class Draw:
    """Mean power of one device in W, the share of its range from idle to cap, and what was assumed."""

    mean_w: float
    utilisation: float
    assumptions: tuple[str, ...]


def device_draw(step: Step, utilisation: float | None = None, without_data: float = 0.0) -> Draw:
    """Return the mean draw of one device during steps like `step`.

    utilisation: share of the range between idle and cap, 0 to 1; None derives it from the step's breakdown.
    without_data: the share of the time in which devices wait for data.
    """
    devices = [(m.hardware, m.gpus / step.cluster.gpus) for m in step.cluster.members]
    cap_w = sum(share * d.power_w.value for d, share in devices)
    idle_w = sum(share * d.idle_power_w.value for d, share in devices)
    assumed = [f"{d.name}: power cap {digits3(d.power_w.value)} W ({d.power_w.source})" for d, _ in devices]
    assumed += [f"{d.name}: idle draw {digits3(d.idle_power_w.value)} W ({d.idle_power_w.source})" for d, _ in devices]
    if utilisation is None:
        waiting_w = max(idle_w, WAITING_SHARE * cap_w)
        busy = (1 - without_data) * sum(step.breakdown_s[term] for term in COMPUTING) / step.step_time_s
        mean_w = busy * cap_w + (1 - busy) * waiting_w
        # A calibrated device whose driver tells no power states 0 W for both.
        utilisation = (mean_w - idle_w) / (cap_w - idle_w) if cap_w > idle_w else 1.0
        of, waits = ("time", ", bubbles and without data") if without_data else ("step", " and bubbles")
        assumed.append(
            f"draw: the cap while computing ({percent(busy)} of the {of}), {digits3(waiting_w)} W in exposed "
            f"communication{waits} ({percent(WAITING_SHARE)} of the cap at iteration boundaries: {POLCA})"
        )
    return Draw(idle_w + (cap_w - idle_w) * utilisation, utilisation, tuple(assumed))
