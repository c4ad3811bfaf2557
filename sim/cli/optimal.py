"""`trainsim optimal`: how many tokens a budget buys, and the model size it is best spent on."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.catalog import names
from sim.cli.output import console
from sim.engine.step import simulate
from sim.market.job_prices import priced
from sim.report.text import answer_optimal
from sim.run.optimal import DEFAULT_LAW, Allocation, Budget, Optimal, compute_optimal
from sim.specs import InputError, Job
from sim.specs.files import print_json


def optimal_command(
    job: Annotated[Path, typer.Argument(help="Job file with model and cluster (and plan, unless --budget-flop).")],
    budget_flop: Annotated[
        float | None, typer.Option(help="Budget in FLOP, 6 a parameter and token. State one of the four.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="Budget in days on the job's cluster, at its plan's speed.")
    ] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="Budget in GPU-hours, at the plan's speed.")] = None,
    usd: Annotated[
        float | None, typer.Option(help="Budget in USD, at the plan's speed and the cluster's price.")
    ] = None,
    law: Annotated[str, typer.Option(help="Scaling law of the catalog (trainsim list scaling).")] = DEFAULT_LAW,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Spend a budget: tokens for the job's model, and the compute-optimal model and tokens."""
    given = {"--budget-flop": budget_flop, "--days": days, "--gpu-hours": gpu_hours, "--usd": usd}
    if sum(v is not None for v in given.values()) != 1:
        stated = {k: v for k, v in given.items() if v is not None}
        raise InputError(
            "budget", stated or None, f"{'' if stated else 'required: '}exactly one of " + ", ".join(given)
        )
    if law not in names("scaling"):
        raise InputError("--law", law, "one of " + ", ".join(names("scaling")))
    loaded = Job.load(job)
    if budget_flop is not None:
        budget = Budget.of_flop(budget_flop)
    elif loaded.plan is None:
        raise InputError("plan", None, "required: a budget of time or money is spent at the plan's speed")
    else:
        step = simulate(loaded.model, priced(loaded.cluster, loaded.prices, loaded.training), loaded.plan)
        budget = Budget.on(step, days, gpu_hours, usd, loaded.training, loaded.loading, loaded.checkpointing)
    found = compute_optimal(loaded.model, budget, law)
    if as_json:
        print_json(optimal_data(found, loaded.model.name))
        return
    for line in answer_optimal(found, loaded.model.name):
        console.print(line, highlight=False)


def optimal_data(found: Optimal, name: str) -> dict[str, Any]:
    """Return the JSON object of a compute-optimal answer."""
    return {
        "budget_flop": found.budget.flop,
        "budget_flop_interval": list(found.budget.flop_interval),
        "law": {"name": found.law.name, "title": found.law.title, "source": found.law.a.source},
        "model": {"name": name, **_allocation(found.given), "tokens_interval": list(found.given_tokens_interval)},
        "optimum": _allocation(found.best),
        "balanced": {**_allocation(found.balanced), "flop": found.balanced.flop},
        "assumptions": list(found.assumptions),
    }


def _allocation(held: Allocation) -> dict[str, float]:
    return {
        "parameters": held.parameters,
        "tokens": held.tokens,
        "tokens_per_parameter": held.tokens_per_parameter,
        "loss": held.loss,
    }
