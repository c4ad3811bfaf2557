"""What a device draws on average while it trains.

Mean draw = idle + (cap - idle) x utilisation. While a device computes it draws its cap; in exposed communication and
in pipeline bubbles it draws half of it; idle is a fifth of it where the catalog knows no measured value. The last two
are the 50 % and the 20 % of the cap at the boundary between iterations that Patel et al. 2023 (POLCA, arXiv
2308.12908) measured for GPT-NeoX and for idle A100s. That computing draws the cap errs on the high side: the maximum
of an H100 node was 8.4 kW of the rated 10.2 kW (Latif et al. 2024, arXiv 2412.08602). Published energy of training
(Llama 2, arXiv 2307.09288, table 2; Llama 3 model card) multiplies GPU-hours by the cap alone.
"""

from dataclasses import dataclass

from sim.engine.step import Step
from sim.units import digits3, percent

COMPUTING = ("compute", "recompute", "optimizer")
"""Terms of the breakdown in which the device computes; all others wait or communicate."""

IDLE_SHARE = 0.2
WAITING_SHARE = 0.5
POLCA = "POLCA, arXiv 2308.12908, A100"


@dataclass(frozen=True)
class Draw:
    """Mean power of one device in W, the share of its range from idle to cap, and what was assumed."""

    mean_w: float
    utilisation: float
    assumptions: tuple[str, ...]


def device_draw(step: Step, utilisation: float | None = None) -> Draw:
    """Return the mean draw of one device during `step`.

    utilisation: share of the range between idle and cap, 0 to 1; None derives it from the step's breakdown.
    """
    cap, known = step.cluster.hardware.power_w, step.cluster.hardware.idle_power_w
    idle_w = known.value if known else IDLE_SHARE * cap.value
    assumed = [f"power cap {digits3(cap.value)} W ({cap.source})"]
    if known:
        assumed.append(f"idle draw {digits3(idle_w)} W ({known.source})")
    else:
        assumed.append(f"idle draw {digits3(idle_w)} W: {percent(IDLE_SHARE)} of the cap ({POLCA})")
    if utilisation is None:
        waiting_w = max(idle_w, WAITING_SHARE * cap.value)
        busy = sum(step.breakdown_s[term] for term in COMPUTING) / step.step_time_s
        mean_w = busy * cap.value + (1 - busy) * waiting_w
        utilisation = (mean_w - idle_w) / (cap.value - idle_w)
        assumed.append(
            f"draw: the cap while computing ({percent(busy)} of the step), {digits3(waiting_w)} W in exposed "
            f"communication and bubbles ({percent(WAITING_SHARE)} of the cap at iteration boundaries: {POLCA})"
        )
    return Draw(idle_w + (cap.value - idle_w) * utilisation, utilisation, tuple(assumed))
