"""trainsim: what-if answers for distributed training before anybody books the GPUs.

A lazy facade (PEP 562): a name is imported when it is first used, so `import sim` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim import cluster as cluster
    from sim import decentralized as decentralized
    from sim import loading as loading
    from sim import market as market
    from sim import report as report
    from sim.engine.allocations import replay_allocator
    from sim.engine.allocator import AllocatorSettings
    from sim.engine.noise import Noise
    from sim.engine.step import Step, simulate
    from sim.plans import emit, save_emitted
    from sim.plans.importing import read_plan
    from sim.plans.plan_file import load_plan, save_plan
    from sim.report import figures as plot
    from sim.report.html import save_html
    from sim.report.shown import table
    from sim.report.trace import save_trace
    from sim.run import Budget, Run, Trained, compute_optimal, train, whole_run
    from sim.specs import (
        Checkpointing,
        Cluster,
        Dataset,
        Failures,
        InputError,
        Job,
        Links,
        Loading,
        Model,
        Multipliers,
        NodeGroup,
        Offload,
        Plan,
        Prices,
        Sharing,
        StagePlan,
        Storage,
        Training,
    )
    from sim.specs.catalog import devices, models
    from sim.specs.notebook_files import notebook_file
    from sim.sweep import Grid, Store, sweep
    from sim.tuner.elasticity import elasticities
    from sim.tuner.fixes import fixes, largest
    from sim.tuner.front import Front, front
    from sim.tuner.tune import Tuned, tune
    from sim.widgets.explore import explore
    from sim.widgets.sweep_view import watch_sweep
    from sim.widgets.whatif import whatif

__version__ = "1.0.0"

_HOME = {
    "AllocatorSettings": "sim.engine.allocator",
    "Budget": "sim.run",
    "Checkpointing": "sim.specs",
    "Cluster": "sim.specs",
    "compute_optimal": "sim.run",
    "Dataset": "sim.specs",
    "devices": "sim.specs.catalog",
    "elasticities": "sim.tuner.elasticity",
    "emit": "sim.plans",
    "explore": "sim.widgets.explore",
    "Failures": "sim.specs",
    "fixes": "sim.tuner.fixes",
    "Front": "sim.tuner.front",
    "front": "sim.tuner.front",
    "Grid": "sim.sweep",
    "InputError": "sim.specs",
    "Job": "sim.specs",
    "largest": "sim.tuner.fixes",
    "Links": "sim.specs",
    "load_plan": "sim.plans.plan_file",
    "Loading": "sim.specs",
    "Model": "sim.specs",
    "models": "sim.specs.catalog",
    "Multipliers": "sim.specs",
    "NodeGroup": "sim.specs",
    "Noise": "sim.engine.noise",
    "notebook_file": "sim.specs.notebook_files",
    "Offload": "sim.specs",
    "Plan": "sim.specs",
    "Prices": "sim.specs",
    "read_plan": "sim.plans.importing",
    "replay_allocator": "sim.engine.allocations",
    "Run": "sim.run",
    "save_emitted": "sim.plans",
    "save_html": "sim.report.html",
    "save_plan": "sim.plans.plan_file",
    "save_trace": "sim.report.trace",
    "Sharing": "sim.specs",
    "simulate": "sim.engine.step",
    "StagePlan": "sim.specs",
    "Step": "sim.engine.step",
    "Storage": "sim.specs",
    "Store": "sim.sweep",
    "sweep": "sim.sweep",
    "table": "sim.report.shown",
    "train": "sim.run",
    "Trained": "sim.run",
    "Training": "sim.specs",
    "tune": "sim.tuner.tune",
    "Tuned": "sim.tuner.tune",
    "watch_sweep": "sim.widgets.sweep_view",
    "whatif": "sim.widgets.whatif",
    "whole_run": "sim.run",
}

_PACKAGES = {
    "cluster": "sim.cluster",
    "decentralized": "sim.decentralized",
    "loading": "sim.loading",
    "market": "sim.market",
    "plot": "sim.report.figures",
    "report": "sim.report",
}

__all__ = [
    "AllocatorSettings",
    "Budget",
    "Checkpointing",
    "Cluster",
    "Dataset",
    "Failures",
    "Front",
    "Grid",
    "InputError",
    "Job",
    "Links",
    "Loading",
    "Model",
    "Multipliers",
    "NodeGroup",
    "Noise",
    "Offload",
    "Plan",
    "Prices",
    "Run",
    "Sharing",
    "StagePlan",
    "Step",
    "Storage",
    "Store",
    "Trained",
    "Training",
    "Tuned",
    "compute_optimal",
    "decentralized",
    "devices",
    "elasticities",
    "emit",
    "explore",
    "fixes",
    "front",
    "largest",
    "load_plan",
    "loading",
    "market",
    "models",
    "notebook_file",
    "plot",
    "read_plan",
    "replay_allocator",
    "report",
    "save_emitted",
    "save_html",
    "save_plan",
    "save_trace",
    "simulate",
    "sweep",
    "table",
    "train",
    "tune",
    "watch_sweep",
    "whatif",
    "whole_run",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'sim' has no attribute {name!r}{_meant(name)}")
    return getattr(import_module(_HOME[name]), name)


def _meant(name: str) -> str:
    """Return the name that was probably meant, for the end of an error; empty where none is near."""
    from sim.specs.meant import near  # noqa: PLC0415 - only here, so that the facade stays light

    found = [] if name.startswith("_") else near(name, __all__)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def __dir__() -> list[str]:
    return sorted(__all__)
