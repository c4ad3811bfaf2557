"""trainsim: what-if answers for distributed training before anybody books the GPUs.

A lazy facade (PEP 562): a name is imported when it is first used, so `import sim` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim import loading as loading
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
    from sim.run import Budget, Run, compute_optimal, whole_run
    from sim.specs import Cluster, InputError, Job, Links, Model, Multipliers, Offload, Plan, StagePlan, Training
    from sim.specs.catalog import devices, models
    from sim.specs.loading import Loading
    from sim.specs.notebook_files import notebook_file
    from sim.sweep import Grid, Store, sweep
    from sim.tuner.elasticity import elasticities
    from sim.tuner.fixes import fixes, largest
    from sim.tuner.front import Front, front
    from sim.tuner.tune import Tuned, tune
    from sim.widgets.explore import explore
    from sim.widgets.sweep_view import watch_sweep
    from sim.widgets.whatif import whatif

__version__ = "0.1.0"

_HOME = {
    "AllocatorSettings": "sim.engine.allocator",
    "Budget": "sim.run",
    "Cluster": "sim.specs",
    "Front": "sim.tuner.front",
    "Grid": "sim.sweep",
    "InputError": "sim.specs",
    "Job": "sim.specs",
    "Links": "sim.specs",
    "Loading": "sim.specs.loading",
    "Model": "sim.specs",
    "Multipliers": "sim.specs",
    "Noise": "sim.engine.noise",
    "Offload": "sim.specs",
    "StagePlan": "sim.specs",
    "Store": "sim.sweep",
    "Plan": "sim.specs",
    "Run": "sim.run",
    "Step": "sim.engine.step",
    "Training": "sim.specs",
    "Tuned": "sim.tuner.tune",
    "compute_optimal": "sim.run",
    "devices": "sim.specs.catalog",
    "elasticities": "sim.tuner.elasticity",
    "emit": "sim.plans",
    "explore": "sim.widgets.explore",
    "fixes": "sim.tuner.fixes",
    "largest": "sim.tuner.fixes",
    "front": "sim.tuner.front",
    "load_plan": "sim.plans.plan_file",
    "models": "sim.specs.catalog",
    "notebook_file": "sim.specs.notebook_files",
    "read_plan": "sim.plans.importing",
    "replay_allocator": "sim.engine.allocations",
    "save_emitted": "sim.plans",
    "save_html": "sim.report.html",
    "save_plan": "sim.plans.plan_file",
    "save_trace": "sim.report.trace",
    "simulate": "sim.engine.step",
    "sweep": "sim.sweep",
    "table": "sim.report.shown",
    "tune": "sim.tuner.tune",
    "watch_sweep": "sim.widgets.sweep_view",
    "whatif": "sim.widgets.whatif",
    "whole_run": "sim.run",
}

_PACKAGES = {"loading": "sim.loading", "plot": "sim.report.figures", "report": "sim.report"}

__all__ = [
    "AllocatorSettings",
    "Budget",
    "Cluster",
    "Front",
    "Grid",
    "InputError",
    "Job",
    "Links",
    "Loading",
    "Model",
    "Multipliers",
    "Noise",
    "Offload",
    "Plan",
    "Run",
    "StagePlan",
    "Step",
    "Store",
    "Training",
    "Tuned",
    "compute_optimal",
    "devices",
    "elasticities",
    "emit",
    "explore",
    "fixes",
    "front",
    "largest",
    "load_plan",
    "loading",
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
