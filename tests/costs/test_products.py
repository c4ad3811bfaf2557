"""Whose matrix products a plan runs: the profile's models of that implementation time it on every way to a time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.cli.check import checked_file
from sim.costs.fitted import SizeBin
from sim.costs.profile import PRODUCTS, Profile, load_profile, profile_text
from sim.costs.run_level import level_of
from sim.engine.batch import Asked, Batch
from sim.engine.step import simulate
from sim.report.sections import certainty_section
from sim.specs import Cluster, InputError, Model, NodeGroup, Plan
from sim.specs.catalog import models
from sim.sweep.evaluate import Evaluate
from sim.sweep.grid import Grid
from sim.tuner.staged import search_stages
from sim.tuner.tune import tune
from tests.costs.test_learned import learn, raw

MODEL = Model(layers=4, hidden=512, heads=8, vocab=2048, seq=128)
LLAMA = models["llama3-8b"]
GPUS = ("h100-sxm-80gb", "a100-sxm-80gb")
MAPPED = "task-mapped"
ALONE = {"kind": "one process", "processes": 1, "precision": "fp32"}


def with_mapped(base: Profile, folder: Path, **changed: Any) -> str:
    """Write `base` with products of another implementation beside its own, twice as fast at any size."""
    by = {"rate": 2.0, "bandwidth": 2.0, "t0": 0.5}
    more = [
        replace(
            m,
            implementation=MAPPED,
            parameters={name: value * by.get(name, 1.0) for name, value in m.parameters.items()},
            **changed,
        )
        for m in base.models
        if m.key in PRODUCTS
    ]
    folder.mkdir(exist_ok=True)
    (folder / "profile.json").write_text(profile_text(replace(base, models=[*base.models, *more])))
    return str(folder)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The shipped profile of a processor's core, which has timed both."""
    return with_mapped(load_profile("cpu"), tmp_path / "both")


def cores(profile: str, n: int = 1) -> Cluster:
    return Cluster.of("cpu", nodes=1, gpus_per_node=n, domain_gpus=n, profile=profile)


def plans(**given: Any) -> list[Plan]:
    """Return a plan with the library's products and with the others."""
    return [Plan(**{"global_batch": 8, "micro_batch": 2} | given | {"product_kernel": k}) for k in ("library", MAPPED)]


def test_a_profile_says_whose_products_it_has_timed(folder):
    held = load_profile(folder)
    rates = held.product_rates
    assert list(rates) == ["library", MAPPED]
    assert rates[MAPPED] == pytest.approx(2 * rates["library"])
    assert held.product_words.startswith(
        "products of 4096 x 4096 x 4096: library 98.9 GFLOP/s, task-mapped 198 GFLOP/s"
    )
    assert list(load_profile("cpu").product_rates) == ["library"]


def test_only_the_products_numbers_change(folder):
    shipped = load_profile("cpu")
    library, mapped = (load_profile(folder, k) for k in ("library", MAPPED))
    assert library.values == shipped.values
    assert mapped.values["gemm_wgrad_rate"] == 2 * shipped.values["gemm_wgrad_rate"]
    products = ("gemm_", "convolution_")  # convolutions that nobody timed are products
    assert {k: v for k, v in mapped.values.items() if not k.startswith(products)} == {
        k: v for k, v in shipped.values.items() if not k.startswith(products)
    }
    assert mapped.with_products("library").values == shipped.values


@pytest.mark.parametrize("engine", ["path", "events"])
def test_the_step_is_shorter_by_amdahls_law(folder, engine):
    library, mapped = (simulate(MODEL, cores(folder), p, engine) for p in plans())
    assert library.step_time_s == simulate(MODEL, cores("cpu"), plans()[0], engine).step_time_s
    share = sum(k.share for k in library.kernels if k.op == "gemm")
    assert 0.3 < share < 0.95
    assert mapped.step_time_s == pytest.approx(library.step_time_s * (1 - share / 2), rel=1e-3)
    assert mapped.peak_memory_bytes == library.peak_memory_bytes


def test_closed_forms_and_sweeps_say_the_same(folder):
    cluster, both = cores(folder, 2), plans(tp=2)
    steps = [simulate(MODEL, cluster, p).step_time_s for p in both]
    assert steps[1] < 0.9 * steps[0]
    asked = [Asked(MODEL, cluster, p.on(MODEL, cluster)) for p in both]
    for how in ("closed", "exact", "walked"):
        assert Batch(asked, how)(level_of(cluster)).step_time_s == pytest.approx(steps)
    sizes = {name: getattr(MODEL, name) for name in ("layers", "hidden", "heads", "vocab", "seq")}
    where = {"device": "cpu", "nodes": 1, "gpus_per_node": 2, "domain_gpus": 2, "profile": folder}
    given = {"global_batch": 8, "micro_batch": 2, "tp": 2}
    grid = Grid(model=sizes, cluster=where, plan=given, axes={"plan.product_kernel": ["library", MAPPED]})
    assert Evaluate(grid).outcome(0, 2).numbers["step_time_s"] == pytest.approx(steps)
    lacks = Grid(model=sizes, cluster=where | {"profile": "cpu"}, plan=given, axes=grid.axes)
    assert Evaluate(lacks).outcome(0, 2).reasons[0].startswith("plan.product_kernel: library: profile ")


def test_the_tuner_keeps_it_for_all_rows(folder):
    knobs = {"tp": [1, 2], "pp": [1, 2], "micro_batch": [1, 2], "zero": [0, 1], "virtual_stages": [1]}
    cluster = cores(folder, 2)
    found = [tune(MODEL, cluster, 8, knobs, top=3, plan=p) for p in plans()]
    for tuned, kernel in zip(found, ("library", MAPPED), strict=True):
        assert {one.plan.product_kernel for one in tuned.plans} == {kernel}
        best = tuned.best.step.step_time_s
        assert best == simulate(MODEL, cluster, tuned.best.plan).step_time_s
        assert tuned.scores.step_time_s[tuned.space.allowed].min() == pytest.approx(best, rel=0.02)
    assert found[1].best.step.step_time_s < 0.9 * found[0].best.step.step_time_s
    with pytest.raises(InputError, match=r"^plan.product_kernel: got 'task-mapped'; allowed: library: profile "):
        tune(MODEL, cores("cpu", 2), 8, knobs, plan=plans()[1])


def test_stages_of_their_own_are_searched_and_timed_with_it(folder):
    knobs = {
        "tp": [1],
        "pp": [2],
        "cp": [1],
        "ep": [1],
        "micro_batch": [1, 2],
        "zero": [0],
        "recompute": ["none", "full"],
    }
    knobs |= {f"offload_{name}": [0.0] for name in ("optimizer", "activations", "weights", "gradients")}
    cluster = cores(folder, 2)
    for kernel in ("library", MAPPED):
        expected, plan = search_stages(MODEL, cluster, 64, knobs, {"product_kernel": kernel}).found[0]
        assert (len(plan.stages), plan.product_kernel) == (2, kernel)
        for engine in ("path", "events"):
            assert simulate(MODEL, cluster, plan, engine).step_time_s == pytest.approx(expected, rel=0.05)


def test_every_group_of_a_mixed_cluster_must_have_timed_them(tmp_path):
    both = [with_mapped(load_profile(name), tmp_path / name) for name in GPUS]
    library, mapped = plans(tp=8, pp=2, global_batch=64)

    def mixed(*profiles: str) -> Cluster:
        return Cluster(groups=tuple(NodeGroup(device=d, profile=p) for d, p in zip(GPUS, profiles, strict=True)))

    old, new = (simulate(LLAMA, mixed(*both), p) for p in (library, mapped))
    assert old.step_time_s == simulate(LLAMA, mixed(*GPUS), library).step_time_s
    assert new.step_time_s < 0.8 * old.step_time_s
    assert new.member.device == old.member.device
    one = tune(LLAMA, mixed(*both), 64, {"tp": [8], "pp": [2], "zero": [0], "virtual_stages": [1]}, top=1, plan=mapped)
    assert one.best.step.step_time_s <= new.step_time_s
    with pytest.raises(InputError, match=f"profile {GPUS[1]} has timed no task-mapped products"):
        simulate(LLAMA, mixed(both[0], GPUS[1]), mapped)


def test_products_that_were_not_timed_are_one_error(tmp_path, folder):
    said = "plan.product_kernel: got 'task-mapped'; allowed: library: profile {} has timed no task-mapped products{}"
    name = load_profile("cpu").name
    for profile in ("cpu", with_mapped(load_profile("cpu"), tmp_path / "other", dtype="bfloat16")):
        with pytest.raises(InputError) as told:
            simulate(MODEL, cores(profile), plans()[1])
        assert str(told.value) == said.format(name, " (forward, dgrad, wgrad) in float32")
    data = json.loads((Path(folder) / "profile.json").read_text())
    data["models"] = [m for m in data["models"] if (m.get("implementation"), m["direction"]) != (MAPPED, "wgrad")]
    (Path(folder) / "profile.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"has timed no task-mapped products \(wgrad\) in float32"):
        simulate(MODEL, cores(folder), plans()[1])
    job = {"model": "gpt2-xl", "cluster": {"device": "l4"}, "plan": {"global_batch": 8, "product_kernel": MAPPED}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert [str(p) for p in checked_file(tmp_path / "job.json")[1]] == [said.format("l4", " (forward, dgrad, wgrad)")]


def test_products_of_the_library_are_never_those_of_another(tmp_path, folder):
    """A profile may list the others first, or hold nothing else."""
    data = json.loads((Path(folder) / "profile.json").read_text())
    data["models"].sort(key=lambda m: m.get("implementation") != MAPPED)
    (Path(folder) / "profile.json").write_text(json.dumps(data))
    assert load_profile(folder, "library").values == load_profile("cpu").values
    data["models"] = [m for m in data["models"] if m["op"] != "gemm" or m["implementation"] == MAPPED]
    (Path(folder) / "profile.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"^plan.product_kernel: got 'library'; allowed: task-mapped: profile "):
        simulate(MODEL, cores(folder), plans()[0])
    assert simulate(MODEL, cores(folder), plans()[1]).step_time_s > 0


@pytest.mark.parametrize("engine", ["path", "events"])
def test_eight_and_four_bits_follow_from_the_librarys_alone(tmp_path, engine):
    cluster = Cluster.of("h100-sxm-80gb", profile=with_mapped(load_profile("h100-sxm-80gb"), tmp_path / "h"))
    library, mapped = (simulate(LLAMA, cluster, p, engine) for p in plans(tp=8, precision="fp16"))
    assert mapped.step_time_s < library.step_time_s
    fp8 = plans(tp=8, precision="fp8")
    assert simulate(LLAMA, cluster, fp8[0], engine).step_time_s < library.step_time_s
    said = "plan.product_kernel: got 'task-mapped'; allowed: library with precision fp8: profile h100-sxm-80gb"
    with pytest.raises(InputError, match=said):
        simulate(LLAMA, cluster, fp8[1], engine)
    with pytest.raises(InputError, match=said):
        tune(LLAMA, cluster, 8, {"precision": ["bf16", "fp8"], "tp": [8], "pp": [1]}, plan=mapped.plan)


def test_intervals_and_domains_are_their_own(tmp_path):
    wide = SizeBin(from_size=0.0, n=9, half_widths={"0.5": 1.0, "0.8": 1.0, "0.9": 1.0, "0.95": 1.0})
    domain = {"m": [1.0, 2.0], "n": [1.0, 2.0], "k": [1.0, 2.0], "batch": [1.0, 1.0]}
    folder = with_mapped(load_profile("cpu"), tmp_path / "both", bins=[wide], domain=domain)
    library, mapped = (simulate(MODEL, cores(folder), p) for p in plans())
    assert mapped.sigma_log > 0.5 > library.sigma_log
    assert "(fitted to 1 .. 2)" in " ".join(mapped.assumptions)
    assert "(fitted to 1 .. 2)" not in " ".join(library.assumptions)


def test_learned_corrections_hold_for_the_librarys_products_alone(folder):
    library, mapped = (simulate(MODEL, cores(folder), p) for p in plans())
    data = raw(predicted_s=library.step_time_s)
    data |= {part: [one | ALONE for one in data[part]] for part in ("corrections", "runs")}
    learn(Path(folder), data)
    taught, others = (simulate(MODEL, cores(folder), p) for p in plans())
    assert taught.step_time_s == pytest.approx(1.25 * library.step_time_s)
    assert others.step_time_s == mapped.step_time_s
    assert "not applied: they were learned from plans with the library's products" in " ".join(others.assumptions)
    asked = [Asked(MODEL, cores(folder), p.on(MODEL, cores(folder))) for p in plans()]
    assert [a.learned for a in asked] == [1.25, 1.0]


def test_the_page_tells_them_apart(folder):
    text = certainty_section(simulate(MODEL, cores(folder), plans()[1]))
    assert "Forward products of 4096 x 4096 x 4096: library 98.9 GFLOP/s, task-mapped 198 GFLOP/s." in text
    assert text.count("<td>matmul</td>") == text.count(f"<td>{MAPPED}</td>") == len(PRODUCTS)
