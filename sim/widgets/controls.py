"""Controls of a plan, and the group that folds what few people change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as w

from sim.report.per_stage import HOSTED, of_stages, on_host, recomputing, runs
from sim.schedules import SCHEDULES
from sim.specs import Cluster, Model, Offload, Plan
from sim.specs.catalog import precisions
from sim.specs.rules import divisors
from sim.tuner.nearest import changed, chunk_layers, chunk_words, depths, with_layers
from sim.tuner.space import default_knobs
from sim.widgets.knob import Knob, on_change

FIRST = {
    "tp": "tensor parallel (tp)", "pp": "pipeline stages (pp)", "virtual_stages": "virtual stages",
    "micro_batch": "micro-batch", "zero": "ZeRO stage", "recompute": "recompute",
}  # fmt: skip
MORE = {
    "global_batch": "global batch", "cp": "context parallel (cp)", "ep": "expert parallel (ep)", "schedule": "schedule",
    "sequence_parallel": "sequence parallel", "precision": "precision", "tempo": "Tempo's layers",
}  # fmt: skip
SHARES = ("weights", "gradients", "optimizer", "activations")
USUAL = "usual"
"""Of a setting that follows from the others."""

SWITCH = {USUAL: None, "on": True, "off": False}
HINTED = ("tp", "pp", "virtual_stages", "micro_batch", "cp", "ep")
"""Knobs of which the control says what is possible."""

MOST_HINTS = 8
BATCHES = [2**k for k in range(3, 15)]


class Group(w.VBox):
    """Settings, and others folded below; the fold says how many of these differ from their defaults."""

    def __init__(self, first: Sequence[w.Widget], folded: Sequence[w.Widget] = (), title: str = "More") -> None:
        self._title, self._fold = title, w.Accordion([w.VBox(folded)], selected_index=None) if folded else None
        super().__init__([*first, *([self._fold] if self._fold else [])])
        self.count(0)

    def count(self, changed: int) -> None:
        """Say how many of the folded settings differ from their defaults."""
        if self._fold:
            self._fold.set_title(0, counted_title(self._title, changed))


def counted_title(title: str, changed: int) -> str:
    """Return the title of folded settings, of which so many differ from their defaults."""
    return f"{title} ({changed} changed)" if changed else title


class PlanControls(Group):
    """The knobs of a plan; what they do not show (framework, overlaps) is that of the plan that was shown last.

    A plan of unequal stages is kept as it is until a knob moves: then all stages are as the knobs say, which is like
    those that most layers have. How stages differ is said below the knobs.
    """

    def __init__(self, model: Model, cluster: Cluster, plan: Plan, what: Callable[[], None]) -> None:
        values, options = _values(plan), _options(model, cluster)
        self.knobs = {n: Knob(n, options[n], values[n], words) for n, words in (FIRST | MORE).items()}
        self.shares = {n: Knob(n, range(0, 101, 25), values[n], f"{n} on the host", " %") for n in SHARES}
        self.dp = w.HTML(layout=w.Layout(min_height="20px"))
        folded = [*(self.knobs[name] for name in MORE), *self.shares.values()]
        super().__init__([*(self.knobs[name] for name in FIRST), self.dp], folded, "More of the plan")
        self._what, self._quiet = what, False
        self.show(plan)
        on_change([*self.knobs.values(), *self.shares.values()], self._moved)

    def show(self, plan: Plan) -> None:
        """Bring the controls to a plan, in one change."""
        self._base, self._untouched, self._quiet = plan, True, True
        for name, value in _values(plan).items():
            (self.knobs | self.shares)[name].value = value
        self._quiet = False
        self._count()

    def plan(self) -> Plan:
        """Return what is asked for, possible or not; raises InputError for a value out of range."""
        if self._untouched:
            return self._base
        held = {name: knob.value for name, knob in self.knobs.items()}
        named = {name: None if held[name] == USUAL else held[name] for name in ("schedule", "precision")}
        named |= {name: SWITCH.get(held[name], held[name]) for name in ("sequence_parallel", "tempo")}
        if self._base.virtual_stages != held["virtual_stages"] or self._base.pp != held["pp"]:
            chunks = held["pp"] * held["virtual_stages"]
            split = chunk_layers(sum(self._base.stage_layers or ()), chunks) if chunks > 0 else ()
            named |= {"microbatch_group_size": None, "stage_layers": split or None}
        offload = Offload(**{name: knob.value / 100 for name, knob in self.shares.items()})
        whole = {"dp": None, "stages": (), "recompute_layers": None} if self._base.stages else {"dp": None}
        if held["recompute"] == "none":
            whole["recompute_layers"] = None
        return self._base.but(**held | named | whole | {"offload": offload})

    def suit(self, model: Model, cluster: Cluster, plan: Plan | None) -> None:
        """Offer what suits the model and cluster, and say of every knob what is possible beside the others."""
        options = _options(model, cluster)
        for name in HINTED:
            knob = self.knobs[name]
            knob.offer(options[name])
            if plan is None or plan.stages:
                knob.hint("")
                continue
            fine = [v for v in knob.options if _possible(model, cluster, plan, {name: v})]
            near = [] if knob.value in fine else sorted(fine, key=lambda v: abs(v - knob.value))[:2]
            knob.hint(_listed(fine), _listed(sorted(near)))
        self.dp.value = "" if plan is None else _derived(cluster, plan)

    def _moved(self) -> None:
        if not self._quiet:
            self._untouched = False
            self._count()
            self._what()

    def _count(self) -> None:
        usual = _values(Plan(global_batch=self._base.global_batch))
        self.count(sum(knob.value != usual[n] for n, knob in (self.knobs | self.shares).items() if n not in FIRST))


def _values(plan: Plan) -> dict[str, Any]:
    """Return what the controls show of a plan, of unequal stages those that most layers have; shares in percent."""
    if plan.stages:
        layers = [sum(s.layers for s in plan.stages if replace(s, layers=own.layers) == own) for own in plan.stages]
        plan = plan.at(layers.index(max(layers)))
    held: dict[str, Any] = {name: getattr(plan, name) for name in FIRST | MORE}
    for name in ("schedule", "precision", "sequence_parallel"):
        held[name] = USUAL if name in plan.derived else held[name]
    for name in ("sequence_parallel", "tempo"):
        if isinstance(held[name], bool):
            held[name] = "on" if held[name] else "off"
    return held | {name: round(100 * getattr(plan.offload, name)) for name in SHARES}


def _options(model: Model, cluster: Cluster) -> Mapping[str, Sequence[Any]]:
    """Return the values that the sliders go over: what could be legal, also where it is not at the moment."""
    values: dict[str, Sequence[Any]] = dict(default_knobs(model, cluster))
    # Depths that suit the layers but not the cluster are offered too: the card says what does.
    values["pp"] = sorted({*depths(model, cluster), *(d for d in divisors(model.layers) if d <= cluster.gpus)})
    values["cp"] = [d for d in divisors(cluster.gpus) if d <= 32]
    return values | {
        "global_batch": BATCHES, "schedule": [USUAL, *SCHEDULES], "precision": [USUAL, *precisions],
        "sequence_parallel": list(SWITCH), "tempo": ["off", "on"],
    }  # fmt: skip


def _possible(model: Model, cluster: Cluster, plan: Plan, changes: Mapping[str, Any]) -> bool:
    """Return whether changes keep every rule; layers that are split unevenly follow them, as in `PlanControls.plan`."""
    whole = with_layers(model, plan, changes) if plan.stage_layers else changes
    return changed(model, cluster, plan, whole) is not None


def _listed(values: Sequence[Any]) -> str:
    if not values:
        return ""
    shown = ", ".join(map(str, values[:MOST_HINTS]))
    return f"{shown}{' …' if len(values) > MOST_HINTS else ''}"


def _derived(cluster: Cluster, plan: Plan) -> str:
    if plan.stages:
        return _unequal(plan)
    dp, rest = divmod(cluster.gpus, plan.tp * plan.pp * plan.cp)
    asked = f"tp {plan.tp} x pp {plan.pp}" + f" x cp {plan.cp}" * (plan.cp > 1)
    value, note = ("–", f"{asked} does not divide {cluster.gpus}") if rest else (str(dp), "derived")
    note += f"; {chunk_words(plan.stage_layers)}" if plan.stage_layers else ""
    label = "data parallel (dp)" if not rest else "dp"
    return f"{label} <b>{value}</b> <span style='color:var(--jp-ui-font-color2)'>{note}</span>"


def _unequal(plan: Plan) -> str:
    """Return what no knob shows of stages: their dp, and what they do not have in common."""
    held = {"layers": runs(plan.split_stages)}
    held |= {name: str(of_stages(plan, name)) for name in ("tp", "dp", "micro_batch", "zero", "sequence_parallel")}
    held |= {"recompute": recomputing(plan)} | {f"{what} on the host, %": on_host(plan, what) for what in HOSTED}
    shown = "; ".join(f"{n.replace('_', ' ')} {value}" for n, value in held.items() if n == "dp" or " " in value)
    return f"<b>stages of their own</b>, from the first: {shown}. A knob that moves makes all stages alike."
