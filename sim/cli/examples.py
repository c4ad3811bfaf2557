"""One line for every command, shown below its help; the files that they read are those of the checkout."""

from collections.abc import Mapping

RENT = "--prices notebooks/data/market-prices.csv --throughputs notebooks/data/market-rates.csv"

EXAMPLES: Mapping[str, str] = {
    "simulate": "simulate notebooks/jobs/gpt3-175b-plan.yaml --html out/step.html",
    "tune": "tune notebooks/jobs/llama3-70b-64xh100.yaml --out out/llama",
    "compare": "compare notebooks/jobs/mist/gpt-2.7b-l4.yaml --out out/plans.csv",
    "sweep": "sweep notebooks/jobs/sweeps/llama3-70b.yaml --store out/sweep.db",
    "report": "report out/sweep.db --html out/sweep.html",
    "optimal": "optimal notebooks/jobs/deepseek-v3-gb200.yaml --days 30",
    "emit": "emit notebooks/jobs/gpt3-175b-plan.yaml --to megatron --out out/megatron.args",
    "import": "import out/megatron.args --from megatron",
    "schedule": "schedule zb-2p --ranks 4 --microbatches 8 --durations F=1,I=1,W=1,comm=0.1",
    "validate": "validate RUNS.csv --site EARLIER.csv",
    "list": "list devices",
    "check": "check notebooks/jobs/gpt3-175b-plan.yaml",
    "schema": "schema job",
    "lab": "lab --no-browser",
    "device new": "device new my-gpu --like h100-sxm-80gb --out out/my-gpu.yaml",
    "checkpointing plan": "checkpointing plan notebooks/jobs/llama3-405b-checkpoints.yaml",
    "checkpointing simulate": "checkpointing simulate notebooks/jobs/llama3-405b-checkpoints.yaml --hours 168",
    "checkpointing measure": "checkpointing measure --folder .",
    "cluster simulate": (
        "cluster simulate --jobs 60 --every-s 600 --throughputs notebooks/data/gavel-throughputs.yaml --cluster 8:8:8"
    ),
    "cluster measure": "cluster measure --policy max_min_fairness_perf",
    "decentralized simulate": "decentralized simulate --algorithm fedavg --controller hill_climbing --skew 0.75",
    "decentralized measure": "decentralized measure --algorithm gaia --skew 0.75",
    "loading predict": "loading predict notebooks/jobs/vit-imagenet-v100.yaml --what-if cache",
    "loading measure": "loading measure --dataset images --workers 1",
    "market simulate": f"market simulate {RENT} --model A3C --days 4 --shares",
    "market together": f"market together {RENT} --trace JOBS.trace",
    "calibrate": "calibrate --device cpu --out out/my-cpu",
    "execute": "execute notebooks/jobs/small-gpt-cpu-pipeline.yaml --device cpu",
    "trace": "trace net.py:factory --out table.json",
}
"""Command -> what stands after `trainsim`."""
