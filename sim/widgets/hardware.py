"""Controls of the model, the cluster, and multipliers on the hardware."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as w

from sim.catalog import meant, names
from sim.costs.profile import load_profile
from sim.specs import Cluster, InputError, Model, Multipliers
from sim.specs.catalog import devices, models
from sim.specs.device import Sourced
from sim.specs.fields import DERIVED, read
from sim.specs.resized import resized
from sim.units import counted, many
from sim.widgets.controls import Group
from sim.widgets.knob import Knob, on_change
from sim.widgets.names import named

SEQUENCES = [2**k for k in range(9, 18)]
DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts")
FACTORS = {
    "intra": "NVLink or links inside a node", "inter": "network between nodes (NIC)", "memory_rate": "memory bandwidth",
    "memory": "memory size", "clock": "clock", "price": "price",
}  # fmt: skip
RATES = {"intra": "intra_bytes_per_s", "inter": "inter_bytes_per_s_per_node"}
TIMES = [0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0]
FULL = w.Layout(width="auto")


class ModelControls(Group):
    """Which model: one of the catalog or a Hugging Face config file; sequence length; folded: its dimensions."""

    def __init__(self, model: Model, what: Callable[[], None]) -> None:
        self.base, self._what, self._quiet = model, what, False
        self.shown = {model.name: model}  # what the panel was brought to may be in no catalog
        self.picker = named(w.Combobox(
            value=model.name, options=sorted({*models, *self.shown}), ensure_option=False, continuous_update=False,
            layout=FULL, placeholder="a name of the catalog, or a path of config.json",
        ), "model")  # fmt: skip
        self.seq = Knob("seq", SEQUENCES, model.seq, "sequence length, tokens")
        self.dimensions = {name: Knob(name, (), getattr(model, name)) for name in DIMENSIONS}
        self.facts = w.HTML()
        super().__init__([self.picker, self.facts, self.seq], list(self.dimensions.values()), "Dimensions")
        self.picker.observe(lambda _: self._picked(), names="value")
        on_change([self.seq, *self.dimensions.values()], self._changed)

    def model(self) -> Model:
        """Return what is asked for; raises InputError where the name is unknown or dimensions contradict."""
        name = meant("models", self.picker.value.strip())
        if name != self.base.name:
            if name not in models and name not in self.shown and not Path(name).exists():
                raise InputError("model", name, "a name of the list, or the path of a config.json")
            self.base = models[name] if name in models else self.shown.get(name) or Model.from_hf(name)
            self._show()
        asked = self._asked()
        return resized(self.base, asked) if asked else self.base

    def _asked(self) -> dict[str, int]:
        """Return the settings that differ from those of the model that was picked."""
        held = {**self.dimensions, "seq": self.seq}
        return {name: knob.value for name, knob in held.items() if knob.value != getattr(self.base, name)}

    @property
    def changed(self) -> int:
        """How many of the settings differ from those of the model that was picked."""
        return len(self._asked())

    def show(self, model: Model) -> None:
        """Bring the controls to a model, without a change being heard."""
        self.base = self.shown[model.name] = model
        self.picker.options = sorted({*models, *self.shown})
        self._show()

    def say(self, model: Model) -> None:
        """Write the model's size below its name."""
        active = model.active_parameters
        experts = f", {active / 1e9:.3g}e9 active" if active != model.parameters else ""
        flop = f"{counted(model.flop_per_token('megatron'))} FLOP a token"
        self.facts.value = (
            f"{model.parameters / 1e9:.4g}e9 parameters{experts}; {many(model.layers, 'layer')}; {flop}"
            f"<br><small>{escape(_sum(model))}</small>"
            + "".join(f"<br><small>assumed: {escape(line)}</small>" for line in model.assumptions)
        )

    def _show(self) -> None:
        self._quiet = True
        for name, knob in {**self.dimensions, "seq": self.seq}.items():
            knob.value = getattr(self.base, name)
        if self.base.name != self.picker.value:
            self.picker.value = self.base.name
        self._quiet = False
        self._count()

    def _picked(self) -> None:
        if not self._quiet:
            self._what()

    def _changed(self) -> None:
        self._count()
        self._picked()

    def _count(self) -> None:
        self.count(len(self._asked().keys() & self.dimensions.keys()))


class ClusterControls(Group):
    """Which devices, how many, and whose profile."""

    def __init__(self, cluster: Cluster, what: Callable[[], None]) -> None:
        self.base = cluster
        offered = list(devices) if cluster.device in devices else [cluster.device, *devices]
        self.device = named(w.Dropdown(options=offered, value=cluster.device, layout=FULL), "device")
        self.nodes = Knob("nodes", [2**k for k in range(12)], cluster.nodes)
        self.per_node = Knob("gpus_per_node", [1, 2, 4, 8, 16, 72], cluster.gpus_per_node, "GPUs per node")
        said = "profile that times it"
        self.profile = named(w.Combobox(
            value=cluster.profile, options=names("profiles"), ensure_option=False, continuous_update=False, layout=FULL,
            placeholder="a profile of the catalog, or a folder with profile.json", disabled=bool(cluster.groups),
        ), said)  # fmt: skip
        self.facts, timed = w.HTML(), w.HTML(said, layout=w.Layout(height="18px", margin="0"))
        super().__init__([self.device, self.nodes, self.per_node, timed, self.profile, self.facts])
        self._what, self._quiet = what, False
        on_change([self.device], self._follow)
        on_change([self.device, self.nodes, self.per_node, self.profile], self._changed)

    def cluster(self) -> Cluster:
        """Return what is asked for; raises InputError where it cannot be."""
        asked = (self.device.value, self.nodes.value, self.per_node.value)
        profile = self.profile.value.strip()
        if (*asked, profile) == (self.base.device, self.base.nodes, self.base.gpus_per_node, self.base.profile):
            return self.base
        if self.base.groups:
            raise InputError("cluster.groups", asked, "left as they are: give another cluster to the panel")
        if asked[0] == self.base.device:
            domain = DERIVED if asked[2] != self.base.gpus_per_node else self.base.domain_gpus
            held = {"nodes": asked[1], "gpus_per_node": asked[2], "domain_gpus": domain}
            return replace(self.base, **held, profile=profile or DERIVED)
        return Cluster.of(asked[0], nodes=asked[1], gpus_per_node=asked[2], profile=profile or DERIVED)

    @property
    def changed(self) -> int:
        """How many of the settings differ from those of the cluster that was given."""
        return sum(control.value != getattr(self.base, name) for name, control in self._settings.items())

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "device": self.device, "nodes": self.nodes, "gpus_per_node": self.per_node, "profile": self.profile,
        }  # fmt: skip

    def show(self, cluster: Cluster) -> None:
        """Bring the controls to a cluster, without a change being heard."""
        self.base, self._quiet = cluster, True
        if cluster.device not in self.device.options:
            self.device.options = [cluster.device, *self.device.options]
        for name, control in self._settings.items():
            control.value = getattr(cluster, name)
        self._quiet = False

    def _changed(self) -> None:
        if not self._quiet:
            self._what()

    def _follow(self) -> None:
        """Take another device's own profile, and with the given device the given one."""
        if not self._quiet:
            self._quiet = True
            self.profile.value = self.base.profile if self.device.value == self.base.device else self.device.value
            self._quiet = False

    def say(self, cluster: Cluster) -> None:
        """Write what the devices are and which profile times them."""
        kinds = [m.hardware for m in cluster.members]
        lines = [
            _sourced(
                f"{d.title}: {d.peak_bf16_flop_per_s.value / 1e12:.4g} TFLOP/s in 16 bit, "
                f"{d.memory_bytes.value / 1e9:.3g} GB at {d.memory_bytes_per_s.value / 1e12:.3g} TB/s",
                (d.peak_bf16_flop_per_s, d.memory_bytes, d.memory_bytes_per_s),
            )
            for d in kinds
        ]
        price, first = cluster.usd_per_gpu_hour, kinds[0]
        date = f" ({first.price_date})" if first.price_date else ""
        listed = first.usd_per_gpu_hour if first.usd_per_gpu_hour and first.usd_per_gpu_hour.value == price else None
        words = f"{price:.2f} USD a GPU-hour{date if listed else ''}" if price else "no price in the catalog"
        lines.append(_sourced(words, (listed,) if listed else ()))
        for member in cluster.members:
            held = load_profile(member.profile)
            badge = f"assumed: scaled from {held.base}" if held.estimate else "measured" if held.measured else "fitted"
            lines.append(escape(f"profile {held.name} ({badge}); {held.product_words}"))
        lines.append(many(cluster.gpus, "GPU"))
        self.facts.value = "<br>".join(lines)


def _sourced(words: str, numbers: Sequence[Sourced]) -> str:
    """Return words with the sources of their numbers as a tooltip."""
    told = "; ".join(dict.fromkeys(number.source for number in numbers))
    return f'<span title="{escape(told, quote=True)}">{escape(words)}</span>' if told else escape(words)


class HardwareControls(Group):
    """Multipliers on what the cluster is made of: 1 is the cluster as it is."""

    def __init__(self, what: Callable[[], None]) -> None:
        self.knobs = {name: Knob(name, TIMES, 1.0, words, "×") for name, words in FACTORS.items()}
        self.reset = w.Button(description="All to 1x", layout=FULL)
        self.facts = w.HTML()
        super().__init__([*self.knobs.values(), self.reset, self.facts])
        self._what, self._quiet = what, False
        self.reset.on_click(lambda _: self._reset())
        on_change(list(self.knobs.values()), self._changed)

    @property
    def factors(self) -> dict[str, float]:
        """The multipliers by name."""
        return {name: float(knob.value) for name, knob in self.knobs.items()}

    @property
    def changed(self) -> int:
        """How many multipliers are not 1."""
        return sum(factor != 1 for factor in self.factors.values())

    def show(self, factors: Mapping[str, float] | None = None) -> None:
        """Bring the multipliers to `factors`, by default all to 1, without a change being heard."""
        self._quiet = True
        for name, knob in self.knobs.items():
            knob.value = (factors or {}).get(name, 1.0)
        self._quiet = False

    def say(self, lines: Sequence[str]) -> None:
        """Write what the multipliers change."""
        self.facts.value = "<br>".join(map(escape, lines))

    def _reset(self) -> None:
        self.show()
        self._what()

    def _changed(self) -> None:
        if not self._quiet:
            self._what()


def _sum(model: Model) -> str:
    """Return what the parameters are the sum of."""
    parts = [f"{many(n, 'layer')} x {counted(block.parameters)}" for block, n in model.blocks.items()]
    ends = {"embedding": model.embedding_parameters, "head": model.head_parameters}
    return "= " + " + ".join([*parts, *(f"{name} {counted(n)}" for name, n in ends.items() if n)])


def multiplied(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """Return the cluster with its rates, memory and price times `factors` (names of `FACTORS`).

    Raises:
        InputError: a product is out of range.
    """
    by = {name: factor for name, factor in factors.items() if factor != 1}
    if not by:
        return cluster
    unstated = [key for key, name in RATES.items() if key in by and getattr(cluster.links, name) is None]
    if unstated:
        raise InputError("cluster.links", None, "rates of links, stated once for all groups, to multiply them")
    links = replace(
        cluster.links,
        **{name: getattr(cluster.links, name) * by[key] for key, name in RATES.items() if key in by},
    )
    held = {name: getattr(cluster.multipliers, name) * by.get(name, 1.0) for name in ("clock", "memory_rate")}
    times = read(Multipliers, held, "cluster.multipliers")
    if not cluster.groups:
        return replace(cluster, links=links, multipliers=times, **_owned(cluster, by))
    groups = tuple(replace(g, **_owned(m, by)) for g, m in zip(cluster.groups, cluster.members, strict=True))
    return Cluster(groups=groups, links=links, multipliers=times)


def _owned(cluster: Cluster, by: Mapping[str, float]) -> dict[str, Any]:
    """Return memory and price of a cluster of one device, multiplied where they are asked for."""
    own: dict[str, Any] = {"memory_bytes": cluster.memory_bytes * by.get("memory", 1)} if "memory" in by else {}
    if "price" in by and cluster.usd_per_gpu_hour is not None:
        own["usd_per_gpu_hour"] = cluster.usd_per_gpu_hour * by["price"]
    return own
