"""The parts of the page that a step and a search share."""

from sim.costs.run_level import software_sigma
from sim.costs.spread import kernel_sigma, widening
from sim.engine.certainty import carried_sigma, experts_sigma, waiting_sigma
from sim.engine.step import Step
from sim.report import figures
from sim.report import markup as m
from sim.report.numbers import byte_unit, days_interval, signed, tenths, time_unit
from sim.report.text import (
    answer_trained,
    critical_words,
    device_memory_interval,
    memory_verdict,
    overflow,
    rental_words,
    shared_words,
    time_and_idle,
)
from sim.report.theme import CATEGORIES as LOOKS
from sim.report.theme import TERMS
from sim.run import Run, in_turn
from sim.run.trained import Trained
from sim.specs.catalog import precision
from sim.tuner.fixes import fixes
from sim.units import counted, digits3, grouped, lasting, many, percent, seconds, si

MAX_RANKS_LISTED = 64
IN_TURN = "What the run takes as each part of its job joins those above, with 80 % intervals."
OPENING_STEPS = 6
"""Steps of a stretch of training that are shown pass by pass."""


def step_cards(step: Step) -> str:
    """Return the five cards: step time, MFU, memory, price, fits; each says how it comes about."""
    time, size = time_unit(step.step_time_s), byte_unit(step.cluster.memory_bytes)
    low, high = step.mfu_interval
    price, date = step.usd_per_1e9_tokens, _price_dates(step)
    fast, slow = step.step_time_interval_s
    scale = None if price is None else price / step.step_time_s
    rate = (
        f"at {step.cluster.usd_per_gpu_hour:.2f} USD per GPU hour" if price is not None else "no price in the catalog"
    )
    device = f"{size.text(step.device_memory_bytes)} ({size.interval(*device_memory_interval(step))})"
    seen = not step.profile.estimate or step.profile.name in step.level.devices  # runs of this device were fitted
    badge, why = "fitted" if seen else "assumed", _whys(step)
    return m.cards(
        [
            m.Card(
                "Step time",
                time.text(step.step_time_s),
                f"80 % interval {time.interval(fast, slow)} {time.name}",
                badge,
                why["time"],
            ),
            m.Card(
                "Model FLOP utilisation (MFU)",
                percent(step.mfu),
                f"{100 * low:.0f}–{100 * high:.0f} %, Megatron's convention",
                badge,
                why["mfu"],
            ),
            m.Card(
                "Peak memory / capacity",
                f"{digits3(step.peak_memory_bytes / size.scale)} / {size.text(step.cluster.memory_bytes)}",
                f"{device} with reserve and context",
                badge,
                why["memory"],
            ),
            m.Card(
                "USD per 1e9 tokens",
                "not known" if price is None else digits3(price),
                rate
                + ("" if scale is None else f", {digits3(scale * fast)}–{digits3(scale * slow)}")
                + (f"; price of {date}" if date and len(date) <= len("2026-01-01") and price is not None else ""),
                "assumed",
                "price per GPU-hour x GPUs x time of 1e9 tokens; what you pay may differ from the list price"
                + (f" ({date})" if date else ""),
            ),
            m.Card("Fits", step.fits, _fits_note(step), badge, why["fits"]),
        ]
    )


def _whys(step: Step) -> dict[str, str]:
    """Return how each card's number comes about: formula, values, source."""
    time, size, plan = time_unit(step.step_time_s), byte_unit(step.cluster.memory_bytes), step.plan
    terms = sorted(((v, TERMS[k].label) for k, v in step.breakdown_s.items() if v), reverse=True)
    flop = step.tokens_per_step * step.model.flop_per_token("megatron")
    held = sorted(((v, LOOKS[k].label) for k, v in step.fullest.composition().items() if v), reverse=True)
    shards = f"tp {plan.tp}, pp {plan.pp}, dp {step.placed.dp}, ZeRO-{plan.zero}"
    peak = step.cluster.peak_flop_per_s(precision(plan.precision).gemm.forward)
    return {
        "time": " + ".join(f"{name} {time.text(v)}" for v, name in terms)
        + f"; profile {step.profile.name} ({step.profile.date}), run level: {step.level.source}",
        "mfu": f"{si(flop, 'FLOP')} of the model / "
        f"({time.text(step.step_time_s)} x {si(peak, 'FLOP/s')} of all devices)",
        "memory": f"pipeline rank {step.fullest.rank}, divided by {shards}: "
        + " + ".join(f"{name} {size.text(v)}" for v, name in held)
        + f"; reserve, communicators and context on top: {step.profile.memory.source}",
        "fits": "yes: the upper end of the interval of device memory is within the capacity; close: the capacity lies "
        "inside the interval; no: the lower end exceeds it",
    }


def _price_dates(step: Step) -> str:
    """Return when the prices of the cluster's devices held, where they are those of the catalog."""
    dates = (
        member.hardware.price_date
        for member in step.cluster.members
        if member.hardware.usd_per_gpu_hour and member.hardware.usd_per_gpu_hour.value == member.usd_per_gpu_hour
    )
    return ", ".join(dict.fromkeys(date for date in dates if date))


def _fits_note(step: Step) -> str:
    free = step.cluster.memory_bytes - step.device_memory_bytes
    if step.fits == "no":
        return f"over by {overflow(step)}"
    unit = byte_unit(abs(free))
    side = f"{unit.text(abs(free))} {'free' if free >= 0 else 'over'} on the fullest pipeline rank"
    return side if step.fits == "yes" else f"{side}; the capacity lies inside the interval"


def run_section(step: Step, run: Run | None) -> str:
    """Return what the whole run takes, or nothing where the job states no training."""
    if run is None:
        return ""

    def spread(interval: tuple[float, float] | None) -> str:
        return f"80 % interval {counted(interval[0])} – {counted(interval[1])}" if interval else ""

    duration, _, interval = days_interval(run.days, run.days_interval).partition(" (")
    least, most = run.energy_kwh_interval
    cards = [
        ("Duration", duration, "80 % interval " + interval.removesuffix(")")),
        ("GPU-hours", counted(run.gpu_hours), spread(run.gpu_hours_interval)),
        ("USD", "not known" if run.cost_usd is None else counted(run.cost_usd), spread(run.cost_usd_interval)),
        ("Energy", si(run.energy_kwh * 1e3, "Wh"), f"80 % interval {si(least * 1e3, 'Wh')} – {si(most * 1e3, 'Wh')}"),
        ("Goodput", tenths(run.goodput), _losses(run)),
    ]
    words = f"{counted(run.tokens)} tokens in {digits3(run.steps)} steps, each like the one on this page."
    assumed = m.folded("What the run assumes", m.bullets(run.assumptions))
    rented = m.heading("Rented") + m.bullets(rental_words(run)) if run.rental else ""
    beside = m.heading("Beside other jobs") + m.bullets(shared_words(run)) if run.shared else ""
    turns = in_turn(step, run)
    parts = m.figure("in-turn", lambda t: figures.in_turn(turns, theme=t), IN_TURN) if len(turns) > 1 else ""
    return m.section("The whole run", m.paragraph(words, "words"), m.cards(cards), parts, rented, beside, assumed)


def _losses(run: Run) -> str:
    """Return what takes the time that does not train, and the draw of a device."""
    parts = ", ".join(f"{what} {tenths(share)}" for what, share in run.losses.items() if share >= 5e-4)
    return f"{parts + '; ' if parts else ''}{digits3(run.mean_power_w_per_gpu)} W a GPU on average"


def trained_section(found: Trained | None) -> str:
    """Return a stretch of training: where its time went, all of it and its first steps; nothing without one."""
    if found is None:
        return ""
    some = (0.0, min(found.seconds, OPENING_STEPS * found.repeated.ticks * 1e-9))
    return m.section(
        f"{lasting(found.seconds)} of training",
        m.paragraph(answer_trained(found), "words"),
        m.figure("training", lambda t: figures.trained(found, theme=t), "All of it; areas are shares of the time."),
        m.figure("first-steps", lambda t: figures.trained(found, some, theme=t), f"The first {seconds(some[1])}."),
        m.folded("What it assumes", m.bullets(found.assumptions)),
    )


def one_after_the_other(microbatches: int) -> str:
    """Return how many microbatches a step without a pipeline takes."""
    return f"{grouped(microbatches)} microbatches one after the other" if microbatches > 1 else "one microbatch"


def timeline_section(step: Step) -> str:
    """Return the timeline with its sentence."""
    plan = step.plan
    ranks = f"{min(16, plan.pp)} of {plan.pp} pipeline ranks shown" if plan.pp > 16 else f"{plan.pp} pipeline ranks"
    microbatches = many(step.placed.microbatches, "microbatch", "microbatches")
    caption = (
        f"{time_and_idle(step)}. {ranks}, schedule {plan.schedule}, {microbatches}; message "
        "latency is inside the gaps between operations."
        if plan.pp > 1
        else f"{time_and_idle(step)}; {one_after_the_other(step.placed.microbatches)}."
    )
    caption = f"{caption} {critical_words(step)}"
    drawn = m.figure("timeline", lambda t: figures.timeline(step, theme=t), caption)
    beginning = figures.opening(step)
    if beginning is None:
        return m.section("The step over time", drawn)
    words = (
        "Too many operations for bars: each point of the picture shows one of the operations that it covers, chosen "
        "so that the area of each kind, and of idle time, is its share of the time. The beginning at full detail:"
    )
    rows, window = beginning
    first = m.figure(
        "opening",
        lambda t: figures.timeline(step, rows, t, window),
        f"The first {seconds(window[1])} of the step, a bar per operation; {rows} of {step.plan.pp} pipeline ranks.",
    )
    return m.section("The step over time", drawn, m.paragraph(words, "words"), first)


def memory_section(step: Step) -> str:
    """Return every rank's peak, the fullest rank over time, and what would help where it does not fit."""
    peaks = m.figure(
        "peaks",
        lambda t: figures.memory_peaks(step, t),
        f"Peak of every pipeline rank; whiskers are 80 % intervals of device memory: {memory_verdict(step)}.",
        peak_table(step),
    )
    held = step.fullest
    at = seconds((int(held.at_ns[held.peak_index]) - step.timeline.zero) * 1e-9)
    action = step.timeline.schedule.label(held.peak_action)
    curve = m.figure(
        "memory",
        lambda t: figures.memory(step, theme=t),
        f"The fullest pipeline rank, {held.rank}, over the step; its peak is first reached at {at} in {action}.",
    )
    return m.section("Memory", m.pair(peaks, curve), "" if step.fits == "yes" else _fixes(step))


def peak_table(step: Step) -> str:
    """Return every pipeline rank's peak by category, and as allocated, reserved and device memory."""
    size = byte_unit(step.cluster.memory_bytes)
    parts = [p.composition() for p in step.memory[:MAX_RANKS_LISTED]]
    names = [n for n in LOOKS if any(p[n] for p in parts)]
    rows = [
        [
            str(h.rank),
            *(digits3(p[n] / size.scale) for n in names),
            digits3(h.peak_bytes / size.scale),
            digits3(step.levels(h.rank).reserved_bytes / size.scale),
            digits3(step.levels(h.rank).nvidia_smi_bytes / size.scale),
        ]
        for h, p in zip(step.memory, parts, strict=False)
    ]
    heads = [("rank", "pipeline rank"), *((LOOKS[n].label, "") for n in names)]
    levels = [("reserved", "by the allocator"), ("device", "as nvidia-smi: with communicators and context")]
    return m.table([*heads, (f"allocated, {size.name}", ""), *levels], rows)


def _fixes(step: Step) -> str:
    """Return the single changes that save memory, those that fit first."""
    found = fixes(step)
    if not found:
        return m.paragraph("No single change of this plan saves memory.")
    size = byte_unit(step.cluster.memory_bytes)
    rows = [[f.change, "−" + size.text(f.saved_bytes), f"{signed(100 * f.slower, 1)} %", f.step.fits] for f in found]
    heads = [
        ("change", ""),
        ("memory", "device memory of the fullest pipeline rank"),
        ("time", "of the step"),
        ("then fits", ""),
    ]
    enough = any(f.step.fits == "yes" for f in found)
    more = (
        ""
        if enough
        else m.paragraph("None of them is enough alone: trainsim tune searches their combinations.", "words")
    )
    return m.heading("Single changes that save memory") + m.table(heads, rows) + more


def breakdown_section(steps: dict[str, Step]) -> str:
    """Return the exposed time by cause of several steps by name."""
    first = next(iter(steps.values()))
    shares = {TERMS[k].label: v / first.step_time_s for k, v in first.breakdown_s.items()}
    largest = sorted(shares.items(), key=lambda i: -i[1])[:3]
    caption = f"Exposed time on the pipeline rank that ends last, {next(iter(steps)) or 'by cause'}: " + ", ".join(
        f"{name} {percent(share)}" for name, share in largest
    )
    labels = list(steps) if len(steps) > 1 else None
    return m.section(
        "Where the time goes",
        m.figure(
            "breakdown", lambda t: figures.breakdown(list(steps.values()), labels, t), caption + ".", term_table(steps)
        ),
    )


def term_table(steps: dict[str, Step]) -> str:
    """Return the exposed time by cause of several steps by name."""
    unit = time_unit(max(s.step_time_s for s in steps.values()))
    terms = [t for t in TERMS if any(s.breakdown_s[t] for s in steps.values())]
    rows = [
        [name, *(digits3(s.breakdown_s[t] / unit.scale) for t in terms), digits3(s.step_time_s / unit.scale)]
        for name, s in steps.items()
    ]
    return m.table([("plan", ""), *((t, TERMS[t].label) for t in terms), (f"total, {unit.name}", "")], rows)


def certainty_section(step: Step) -> str:
    """Return how far the prediction can be trusted: the profile's errors, the interval's parts, assumptions."""
    profile = step.profile
    low, high = profile.interval80(1.0, step.sigma_log)
    whose = "measurements of this device" if profile.measured else "public measurements"
    fit = f"an estimate scaled from {profile.base}" if profile.estimate else f"fitted to {whose}"
    parts = {
        "runs of sources that the run-level parameters never saw": step.level.sigma_log,
        "carrying kernels over from another device": carried_sigma(profile, step.level),
    }
    if step.waiting:
        hosts = waiting_sigma(step.waiting, step.model, step.plan)
        parts["other hosts than the one whose issue of kernels is known"] = hosts
    if experts := experts_sigma(step.model, step.level):
        parts["experts beside state spaces or sinks, which none of these runs had"] = experts
    if step.plan.software_year is not None:
        parts["software of another year"] = software_sigma(step.plan.software_year)
    if profile.session:
        parts |= {
            "errors of kernels (counted where larger than those of runs)": kernel_sigma(profile, step.kernels, False),
            "kernels outside the fitted shapes": widening(profile, step.kernels),
        }
    if step.correction:
        parts |= {
            "scatter of executed plans (counted where larger than all of these)": step.correction.scatter_log,
            "the learned correction itself": step.correction.error_log,
        }
    words = (
        f"Profile {profile.name} ({profile.date}) is {fit}. The 80 % interval of a step time runs from "
        f"{signed(100 * (low - 1), 0)} % to {signed(100 * (high - 1), 0)} %: "
        + ", ".join(f"{name} {percent(sigma)}" for name, sigma in parts.items())
        + f" (standard deviations of log time, added in quadrature). Forward {profile.product_words}."
    )
    heads = [
        ("kernel", ""),
        ("direction", ""),
        ("implementation", "which kernel it is; empty: any, of matrix products the library's"),
        ("status", "fitted: to measurements; scaled: from another device; datasheet"),
        ("held out", "measurements kept from the fit"),
        ("MAPE", "mean absolute error of held-out measurements, percent"),
        ("p90", "90 % of held-out errors are below, percent"),
        ("bias", "mean signed error, percent"),
        ("90 % coverage", "share of measurements inside the 90 % interval"),
    ]
    rows = []
    for model in profile.models:
        error = model.cross_validation
        numbers = (
            ["–"] * 4
            if error is None
            else [f"{error.mape:.1f}", f"{error.p90:.1f}", signed(error.bias, 1), percent(error.coverage90)]
        )
        rows.append([model.op, model.direction, model.implementation, model.status, str(model.n_test), *numbers])
    errors = m.heading("Errors of the kernel models, %") + m.table(heads, rows)
    assumed = m.heading("Assumptions") + m.bullets(step.assumptions)
    return m.section("How sure", m.paragraph(words, "words"), m.pair(errors, assumed, "text"))
