"""Every reader of files but jobs (`test_fuzz`): a file that loads, and what reads it."""

import csv
import gzip
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import sim
from calibration.checkpointing.manifest import DATA as DATA_FILE
from calibration.checkpointing.manifest import FILE as MANIFEST
from calibration.checkpointing.manifest import Manifest as CheckpointManifest
from calibration.checkpointing.manifest import Progress
from calibration.checkpointing.manifest import read_manifest as read_checkpoint
from calibration.checkpointing.results import read_evidence as read_checkpointing
from calibration.checkpointing.training import history
from calibration.cluster.results import read_evidence as read_cluster
from calibration.execute.holdout import executed as executed_before
from calibration.gpu_session import STATE, load_state
from calibration.journal import read_journal
from calibration.layers.lstm_results import read_recurrences
from calibration.layers.tempo_results import read_tempos
from calibration.loading.generated import MANIFEST as GENERATED
from calibration.loading.generated import read_manifest as read_generated
from calibration.loading.results import read_results as read_loading
from calibration.measured import read_rows
from calibration.memory import SIMULATED, DeviceMemory, load_memory
from calibration.nccl_logs import is_log, read_logs
from calibration.published.tables import MAX_BYTES, read_public
from calibration.store import SESSION, load_session
from calibration.taskmap.results import read_results as read_kernels
from calibration.trace_tree import read_tree
from calibration.workloads.expected import read_expectations
from calibration.workloads.results import FILE as WORKLOADS
from calibration.workloads.results import load_results as read_workloads
from sim.cli.check import checked_file
from sim.cli.report import report_data
from sim.cluster.importers import imported_log
from sim.cluster.importers.kueue import read_kueue
from sim.cluster.importers.slurm import read_sacct
from sim.cluster.predicted import is_workload, read_workload
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.trace import read_trace as read_jobs
from sim.costs.learned import FILE as LEARNED
from sim.costs.learned import read_learned
from sim.costs.run_level import SITE, Site, read_site, run_level
from sim.decentralized.accuracy import read_runs as read_short_runs
from sim.decentralized.setting import Decentralized
from sim.engine.memory_trace import read_trace as read_memory_trace
from sim.market.availability import read_availability
from sim.market.lifetimes import read_lifetimes
from sim.market.offers import History, Market
from sim.market.price_files import read_prices
from sim.market.rates import read_rates
from sim.plans import emit
from sim.plans.flags import words
from sim.plans.importing import read_plan
from sim.plans.plan_file import load_plan, plan_data
from sim.schedules.custom import read_order
from sim.specs import Model
from sim.specs.csv_rows import read_specs
from sim.specs.files import text_of
from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.store import Store
from sim.tuner.ways_table import read_compared
from sim.validation.ablation import read_ablation
from sim.validation.accuracy import read_accuracy
from sim.validation.executed import read_evidence as read_executed
from sim.validation.gavel import CELLS, published_runs
from sim.validation.gavel_results import read_study
from sim.validation.gavel_study import published
from sim.validation.jobs import is_table_of_jobs
from sim.validation.jobs import read_jobs as read_job_times
from sim.validation.market_published import PublishedCost
from sim.validation.market_results import read_market_study
from sim.validation.staged import read_staged
from sim.validation.table import is_runs, read_runs
from sim.validation.traces import read_trace
from tests.calibration import nccl
from tests.calibration.published.test_profiles import COLLECTIVE_FILES, KERNEL_FILES
from tests.calibration.traces import kernel, op
from tests.cluster import test_trace
from tests.cluster.importers import test_kueue, test_slurm
from tests.costs import test_learned
from tests.engine import test_memory_trace
from tests.market import test_lifetimes
from tests.market.test_price_files import EXAMPLES
from tests.market.toys import offer
from tests.oracle import ROOT, reference
from tests.specs.test_table import TABLE
from tests.sweep.conftest import AXES, BASE
from tests.validation.test_staged import files

Text = tuple[str, Callable[[], str], Callable[[Path], object]]
Binary = tuple[str, Callable[[Path], object], Callable[[Path], object]]
DATA = ROOT / "notebooks" / "data"
PROFILE = ROOT / "sim" / "catalog" / "profiles" / "cpu"
LINES = 30


@cache
def step(**changed: Any) -> Any:
    """Return a step of a plan that every target but DeepSpeed can run, changed as said."""
    plan = sim.Plan(**{"tp": 2, "pp": 2, "global_batch": 32} | changed)
    return sim.simulate(sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb", nodes=1), plan)


def head(name: str) -> str:
    """Return the first lines of a file of the notebooks."""
    return "\n".join(whole(name).splitlines()[:LINES]) + "\n"


def whole(name: str) -> str:
    """Return a file of the notebooks."""
    return (DATA / name).read_text("utf-8")


def settings(target: str, **changed: Any) -> Text:
    """Return the file of a target's settings, how it is made and how it is read."""
    return (
        "settings.txt",
        lambda: emit(step(**changed), target),
        lambda path: read_plan(path.read_text("utf-8", "replace"), target),
    )


def listed_settings() -> Text:
    """Return Megatron-LM's arguments as a JSON list of words."""
    name, made, read = settings("megatron")
    return name, lambda: json.dumps(words(made(), name)), read


def _used(found: object) -> object:
    """Return what was read after all that is told of it was asked for."""
    for name in dir(type(found)):
        if not name.startswith("_") and isinstance(getattr(type(found), name), property):
            getattr(found, name)
    return list(found.lines()) if hasattr(found, "lines") else found


def evidence(name: str, read: Callable[[Path], object]) -> Text:
    """Return a file of measurements that a notebook shows, as it is shipped."""
    return Path(name).name, partial(whole, name), lambda path: _used(read(path))


def available(path: Path, **asked: Any) -> object:
    """Read when an offer can be held."""
    return read_availability(path, Market((History.constant(offer(), 1.0),)), **asked)


def recorded() -> str:
    """Return runs of the published cluster simulator, some of every kind."""
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow((*CELLS, "error"))
    for given in (
        {"trace": "a.trace"},
        {"gen": '{"lam": 7200.0, "multi": false}', "window": "[10, 40]"},
        {"gen": '{"lam": 0.0, "num_total": 30}', "error": "TIMEOUT"},
    ):
        run = {"cluster_v100_p100_k80": "2:0:4", "seed": 3, "makespan_s": 8e5, "avg_jct_s": 4e4, "wall_s": 0.5} | given
        writer.writerow(
            [run.get(name, "" if name in ("gen", "window", "error") else name) for name in (*CELLS, "error")]
        )
    return out.getvalue()


def staged(at: int) -> Text:
    """Return one of the three tables of runs whose stages differ, beside the two others; skips without the tables."""
    return (
        f"table-{at}",
        lambda: files()[at].read_text("utf-8"),
        lambda path: read_staged(*(path if k == at else other for k, other in enumerate(files()))),
    )


def public(name: str) -> Text:
    """Return the first lines of a published table of kernels or collectives; skips without the tables."""
    return (
        "p.csv",
        lambda: "\n".join(text_of(reference(name), MAX_BYTES).splitlines()[:LINES]) + "\n",
        lambda path: read_public([path]),
    )


def of_a_site() -> str:
    """Return run-level parameters of a site whose profile is empty."""
    held = Site(profile_sha256=sha256(b"{}").hexdigest(), run_level=run_level())
    return json.dumps(asdict(held))


def read_of_a_site(path: Path) -> object:
    """Read them, beside that profile."""
    (path.parent / "profile.json").write_text("{}", "utf-8")
    return read_site(str(path.parent))


PUBLIC = (
    *(f"kernels/{name}.csv" for name in KERNEL_FILES),
    *(f"collectives/{name}" for name in COLLECTIVE_FILES),
    "tuner/op_timings_l4.csv",
)
LIVES = "".join(
    test_lifetimes.event(hour, name, created=created)
    for hour, name, created in ((0, "x", True), (1, "y", True), (5, "x", False), (9, "y", False), (10, "x", True))
)
PERIODS = "cloud,zone,device,begin_utc,end_utc\naws,us-east-1a,V100,2020-03-01,2020-03-01T02:00Z\n"
RUN = {"cluster_v100_p100_k80": "2:0:4", "seed": 3, "makespan_s": 8e5, "avg_jct_s": 4e4, "wall_s": 0.5}
FIGURES = "metric,policy,x,value\navg_JCT_hours,fifo,0.4,17.5\navg_JCT_hours,fifo,0.8,18.25\nrho,allox,2,1.5\n"
COSTS = "aws_region,v100_days_of_work,model,strategy,mean_cost_usd,min_cost_usd,max_cost_usd,source\n" + (
    "us-east-1,4,A3C,baseline,95.5,90.8,96.8,cell 9\n" * 2
)
LOG = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"resumed": 0},
        *({"step": step, "epoch": 0, "samples": [2 * step, 2 * step + 1]} for step in (1, 2, 3)),
        {"resumed": 2},
        {"step": 3, "epoch": 0, "samples": [6, 7]},
    )
)
RECORD = {"status": "done", "seconds": 1.5, "reason": "", "at": "2026-11-20T00:00:00+00:00"}
OF_A_DEVICE = DeviceMemory(constants=SIMULATED, as_simulated=True, workspace_bytes=2**23, context_bytes=2**29)
MEMORY = json.dumps({"memory": asdict(OF_A_DEVICE)})
PROFILED = [
    op("aten::mm", 0.0, 9.0, [(4, 8), (8, 2)], External_id=3),
    kernel(3, 5.0),
    op("aten::add", 10.0, 1.0, [(4,)]),
]
FAR_APART = json.dumps({"algorithm": "gaia", "skew": 0.5, "wan": {"partitions": 3, "latency_s": 0.1}})
HOLD_OUT = json.dumps({"predictions": {"a": {"step_time_s": 1.0}, "b": {}}, "rows": [{"name": "a", "error": 0.1}]})
FILES = json.dumps({"kind": "images", "scale": 64.0, "seed": 0, "sizes_bytes": [5_000, 6_000]})
CHECKPOINT = CheckpointManifest(
    file=DATA_FILE,
    progress=Progress(step=8),
    format="torch.save",
    torch="2.13.0",
    bytes=100,
    crc32=0,
    tensors=[],
    tree={"step": 8},
)


READERS: Mapping[str, Text] = {
    **{f"prices {n}": (n, lambda n=n: EXAMPLES[n][0], read_prices) for n in EXAMPLES if not n.endswith(".gz")},
    **{name: public(name) for name in PUBLIC},
    "rates": ("rates.csv", lambda: head("market-rates.csv"), read_rates),
    "lifetimes": ("l.csv", lambda: test_lifetimes.HEADER + LIVES, read_lifetimes),
    "availability log": ("a.csv", lambda: test_lifetimes.HEADER + LIVES, available),
    "availability periods": ("a.csv", lambda: PERIODS, available),
    "availability trace": (
        "a.json",
        lambda: json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 1, 0]}),
        lambda path: available(path, offer=offer().name, begin_s=0.0),
    ),
    "throughputs": ("t.yaml", lambda: head("gavel-throughputs.yaml"), read_throughputs),
    "workload": (
        "w.yaml",
        lambda: whole("cluster-workload.yaml"),
        lambda path: (is_workload(path), read_workload(path)),
    ),
    "jobs": ("jobs.trace", lambda: test_trace.LINE + "\n", read_jobs),
    "log of a scheduler": ("s.txt", lambda: "\n".join((test_slurm.HEAD, *test_slurm.LINES)), imported_log),
    "slurm": ("s.txt", lambda: "\n".join((test_slurm.HEAD, *test_slurm.LINES)), read_sacct),
    "kueue": ("k.csv", lambda: "\n".join((test_kueue.HEAD, *test_kueue.LINES)), read_kueue),
    "megatron": settings("megatron"),
    "megatron, as a list": listed_settings(),
    "torchtitan": settings("torchtitan"),
    "deepspeed": settings("deepspeed", tp=1, pp=1, zero=1, sequence_parallel=False),
    "checked": ("j.yaml", lambda: (ROOT / "notebooks/jobs/llama3-70b-64xh100.yaml").read_text("utf-8"), checked_file),
    "order": ("o.csv", lambda: emit(step(), "torch-csv"), read_order),
    "plan": ("p.json", lambda: json.dumps(plan_data(step())), load_plan),
    "layer table": ("t.json", lambda: json.dumps(asdict(TABLE)), Model.from_table),
    "grid": ("g.yaml", lambda: (ROOT / "notebooks/jobs/sweeps/llama3-70b.yaml").read_text("utf-8"), Grid.load),
    "decentralised": ("d.json", lambda: FAR_APART, Decentralized.load),
    "short runs": ("r.csv", lambda: head("decentralized-grid.csv"), read_short_runs),
    "journal": ("j.jsonl", lambda: '{"name": "a", "seconds": 1.5}\n{"name": "b", "seconds": 2}\n', read_journal),
    "runs": ("r.csv", lambda: head("ptdp.csv"), read_runs),
    "table of jobs": (
        "own.csv",
        lambda: f"job,step_time_s\n{ROOT}/notebooks/jobs/gpt3-175b-plan.yaml,40\n",
        lambda path: (is_table_of_jobs(path), read_job_times(path)),
    ),
    "kind of table": ("r.csv", lambda: head("ptdp.csv"), is_runs),
    "staged runs": staged(0),
    "staged plans": staged(1),
    "staged links": staged(2),
    "compared": ("c.csv", lambda: head("plans.csv"), lambda path: [row.parsed() for row in read_compared(path)]),
    "ablation": ("a.csv", lambda: head("ablation.csv"), read_ablation),
    "accuracy": ("a.csv", lambda: head("accuracy.csv"), read_accuracy),
    "profiler": ("t.json", lambda: whole("hardware-trace-0.json"), read_trace),
    "profiled kernels": ("t.json", lambda: json.dumps({"traceEvents": PROFILED}), read_tree),
    "memory trace": ("m.jsonl", lambda: "\n".join(test_memory_trace.LINES), read_memory_trace),
    "learned": (LEARNED, lambda: json.dumps(test_learned.raw()), lambda path: read_learned(path.parent, "0" * 64)),
    "site": (SITE, of_a_site, read_of_a_site),
    "nccl-tests": (
        "all_reduce.log",
        lambda: nccl.log("all_reduce", (4, 4), (2**10, 2**20, 2**30), (3e-5, 6e-5, 4e-3)),
        lambda path: (is_log(path), read_logs(path)),
    ),
    "nccl-tests' JSON": (
        "all_reduce.json",
        lambda: nccl.report("all_reduce", ["a", "b"], 4, (2**10, 2**20, 2**30), (3e-5, 6e-5, 4e-3)),
        lambda path: (is_log(path), read_logs(path)),
    ),
    "session": (SESSION, lambda: (PROFILE / SESSION).read_text("utf-8"), lambda path: load_session(path.parent)),
    "state": (STATE, lambda: json.dumps({"a": RECORD}), lambda path: load_state(path.parent)),
    "memory": ("memory.json", lambda: MEMORY, load_memory),
    "manifest": (MANIFEST, CHECKPOINT.text, lambda path: read_checkpoint(path.parent)),
    "files": (GENERATED, lambda: FILES, lambda path: read_generated(path.parent)),
    "executed": evidence("hardware.json", read_executed),
    "checkpointing": evidence("checkpointing.json", read_checkpointing),
    "cluster": evidence("cluster-real.json", read_cluster),
    "loading": evidence("loading.json", read_loading),
    "tempo": evidence("tempo.json", read_tempos),
    "recurrences": evidence("recurrent.json", read_recurrences),
    "kernels": evidence("kernels.json", read_kernels),
    "workloads": evidence(f"workloads/tiny/{WORKLOADS}", lambda path: read_workloads(path.parent)),
    "expectations": evidence("workloads/expected.json", read_expectations),
    "gavel study": evidence("cluster.json", read_study),
    "recorded runs": ("runs_summary.csv", recorded, lambda path: list(published_runs(path.parent))),
    "published figures": ("published_results.csv", lambda: FIGURES, lambda path: published(path.parent)),
    "published costs": ("costs.csv", lambda: COSTS, lambda path: list(read_specs(path, PublishedCost))),
    "log": ("log", lambda: LOG, history),
    "market study": evidence("market.json", read_market_study),
    "hold-out": ("hold-out.json", lambda: HOLD_OUT, executed_before),
}


def _store(path: Path) -> None:
    """Sweep a small grid."""
    sweep(Grid(**BASE, axes={name: AXES[name] for name in ("plan.tp", "plan.micro_batch")}), path, "here")


def _reported(path: Path) -> object:
    """Read a store as the command `report` does."""
    with Store(path) as store:
        store.sample()
        return report_data(store)


def _packed(path: Path) -> None:
    path.write_bytes(gzip.compress(EXAMPLES["aws.csv"][0].encode(), mtime=0))


def _samples(path: Path) -> None:
    shutil.copy(PROFILE / path.name, path)


BINARY: Mapping[str, Binary] = {
    "samples": ("samples.parquet", _samples, read_rows),
    "store": ("s.db", _store, _reported),
    "packed prices": ("aws.csv.gz", _packed, read_prices),
}
"""The same of files that are no text; what makes them takes their place."""
