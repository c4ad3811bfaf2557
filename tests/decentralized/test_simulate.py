from itertools import pairwise

import pytest

from sim.decentralized import KNOBS, Change, Decentralized, Failure, Sizes, Wan, law, simulate
from sim.specs.fields import InputError, read
from tests.decentralized.toys import fitted, small

EVERY = 400
CONTROLLED = ("hill_climbing", "stochastic_hill_climbing", "annealing")


def controlled(name, seed=0, skew=1.0, travels=30):
    """Return a training of so many travels under a controller."""
    return small(controller=name, steps=EVERY * travels, travel_every=EVERY, seed=seed, skew=skew)


@pytest.mark.parametrize("skew", [0.0, 0.5])
@pytest.mark.parametrize("name", CONTROLLED)
def test_a_controller_sends_little_more_than_the_best_theta(name, skew):
    model = fitted()
    setting = controlled(name, skew=skew)
    meeting = [t for t in setting.thetas if model.accuracy_loss(t, skew).value <= setting.objective.tolerated]
    fixed = setting.with_(controller="fixed", travel_every=0)
    least = min(law(fixed.with_(theta=theta)).traffic_bytes for theta in meeting)
    found = [simulate(setting.with_(seed=seed), model) for seed in range(5)]
    assert all(one.bearable and one.traffic_bytes <= 1.5 * least for one in found)
    assert {one.final_theta for one in found} <= set(sorted(meeting)[-2:])
    assert sum(one.final_theta == max(meeting) for one in found) >= 3


def test_what_a_real_run_observed_takes_the_place_of_a_model():
    setting = controlled("hill_climbing", travels=4)
    losses = [0.2, 0.2, 0.01, 0.01]
    found = simulate(setting, observed=losses)
    assert [travel.accuracy_loss for travel in found.travels] == losses
    assert [travel.theta for travel in found.travels] == [200.0, 200.0, 100.0, 200.0]
    assert (found.accuracy, found.accuracy_loss) == (None, None)
    with pytest.raises(InputError, match=r"observed: got '3 losses'; allowed: 4"):
        simulate(setting, observed=losses[:3])
    with pytest.raises(InputError, match="accuracy: got 'gaia'"):
        simulate(setting, fitted("gaia"), losses)
    with pytest.raises(InputError, match="accuracy: missing"):
        simulate(setting)


def test_the_same_seed_gives_the_same_training_and_another_one_another():
    model = fitted(sigma=0.02)
    one, again, other = (simulate(controlled("annealing", seed, travels=8), model) for seed in (0, 0, 1))
    assert one == again
    assert [t.accuracy_loss for t in one.travels] != [t.accuracy_loss for t in other.travels]
    calm = [simulate(controlled("hill_climbing", seed, travels=8).with_(noise=False), model) for seed in (0, 1)]
    assert calm[0].travels == calm[1].travels


def test_travels_say_what_was_seen_and_what_followed():
    found = simulate(controlled("hill_climbing"), fitted())
    assert [travel.step for travel in found.travels] == [EVERY * n for n in range(1, 31)]
    assert all(travel.models == 5 for travel in found.travels)
    assert found.travel_bytes == 30 * 5 * found.setting.sizes.model_bytes
    assert found.travels[0].sent_bytes == found.setting.sizes.model_bytes / found.travels[0].theta
    assert [since.theta for since in found.thetas][:2] == [200.0, 100.0]
    after = [travel.next_theta for travel in found.travels]
    assert [travel.theta for travel in found.travels[1:]] == after[:-1]
    weights = [(b.step - a.step) * fitted().accuracy(a.theta, 1.0).value
               for a, b in zip(found.thetas, [*found.thetas[1:], replace_step(found)], strict=True)]  # fmt: skip
    assert found.accuracy.value == pytest.approx(sum(weights) / found.steps)


def replace_step(found):
    """Return an end for the last theta."""
    return found.thetas[-1]._replace(step=found.steps)


def test_iid_data_loses_nothing_and_takes_the_loosest_theta():
    found = simulate(controlled("hill_climbing", skew=0.0), fitted())
    assert found.final_theta == KNOBS["fedavg"].thetas[-1]
    assert abs(found.accuracy_loss.value) < 0.01
    assert found.saving > 50


def test_the_others_go_on_without_a_partition_that_failed():
    calm = small(algorithm="bsp", theta=1.0, steps=200)
    failing = calm.with_(failures=[Failure(partition=2, at_s=20.0)], timeout_s=7.0)
    found = simulate(failing)
    assert found.finished
    assert found.failed == (2,)
    assert found.saving is None  # BSP is that of all partitions
    assert found.parts_s[2]["compute"] < found.parts_s[0]["compute"] == pytest.approx(20.0)
    assert [parts["timeout"] for parts in found.parts_s] == [7.0, 7.0, 0.0, 7.0, 7.0]
    assert found.seconds == pytest.approx(law(calm).seconds + 7.0, rel=0.01)
    assert "partition 2 failed" in found.reports[0]
    assert "went on with 4" in found.reports[0]
    done = int(found.reports[0].split("minibatch ")[1].split(",")[0])
    message = 4 * 1_000_000
    both = (done - 1) * 20 * message + (200 - done) * 12 * message
    assert both + 12 * message <= found.traffic_bytes <= both + 20 * message


@pytest.mark.parametrize("at_s", [0.0, 0.05, 0.2, 3.0, 8.1, 9.0, 11.0, 17.3, 40.0, 1e6])
def test_a_failure_at_any_time_is_survived(at_s):
    setting = small(steps=100, theta=10.0, travel_every=40, timeout_s=2.0, evaluate_s=2.0)
    found = simulate(setting.with_(failures=[Failure(partition=0, at_s=at_s)]))
    assert found.finished
    for n, parts in enumerate(found.parts_s):
        assert n == 0 or sum(parts.values()) == pytest.approx(found.seconds)
    assert bool(found.reports) == (0 in found.failed)


@pytest.mark.parametrize(("theta", "travel_every", "steps"), [(400.0, 0, 0), (5.0, 0, 15), (10.0, 10, 10)])
def test_where_all_fail_nothing_more_is_trained(theta, travel_every, steps):
    failures = [Failure(partition=n, at_s=3.0) for n in range(5)]
    found = simulate(small(failures=failures, theta=theta, travel_every=travel_every, evaluate_s=1.0))
    assert (found.steps, found.finished) == (steps, False)
    assert 3.0 <= found.seconds < 4.0  # nobody waits timeout_s
    assert found.exchanges == steps // theta
    assert found.reports == (f"after {steps} minibatches no partition is left",)


def test_nobody_is_left_to_train_with():
    failures = [Failure(partition=n, at_s=5.0 + n) for n in range(4)]
    found = simulate(small(failures=failures, timeout_s=1.0, theta=5.0))
    assert not found.finished
    assert found.saving is None
    assert "one partition is left" in found.reports[-1]


def test_a_slow_link_is_named_with_what_it_takes():
    wan = Wan(changes=[Change(at_s=0.0, source=3, target=1, factor=0.01)])
    found = simulate(small(algorithm="bsp", theta=1.0, steps=20, wan=wan))
    (slow,) = found.slow_links
    assert (slow.source, slow.target) == (3, 1)
    assert slow.seconds == pytest.approx(4e6 / 1.25e5 + 0.05)
    assert found.reports[0].startswith("link 3 -> 1 is slow: 32.05 s a message, 86.6 times the middle link's")
    assert found.seconds > 20 * 32
    assert found.parts_s[0]["waiting"] > 0.9 * found.seconds
    assert simulate(small(steps=20)).slow_links == ()


def test_a_link_that_changes_midway_carries_each_part_at_its_rate():
    wan = Wan(partitions=2, bytes_per_s=1_000.0, latency_s=0.0, changes=[Change(at_s=3.0, source=0, factor=0.5)])
    sizes = Sizes(parameters=1_000)
    found = simulate(Decentralized(algorithm="bsp", theta=1.0, steps=1, step_s=1.0, wan=wan, sizes=sizes))
    assert found.seconds == 1 + 2 + (4_000 - 2_000) / 500


def test_spans_are_those_of_the_begin_and_lie_in_a_row():
    found = simulate(small(algorithm="bsp", theta=1.0, steps=400))
    own = [span for span in found.spans if span.partition == 1]
    assert len(own) == 400
    assert all(a.end_ns == b.start_ns for a, b in pairwise(own))


def test_what_is_not_known_is_refused_or_told():
    with pytest.raises(InputError, match="accuracy: missing; required with controller hill_climbing"):
        simulate(controlled("hill_climbing"))
    with pytest.raises(InputError, match="accuracy: got 'fedavg'; allowed: short runs of gaia"):
        simulate(small(algorithm="gaia"), fitted())
    found = simulate(small(algorithm="gaia"))
    assert (found.accuracy, found.bearable) == (None, None)
    assert any("sent_fraction = 1" in told for told in found.assumptions)
    beyond = simulate(small(theta=1_000.0), fitted())
    assert any("beyond what was measured" in told for told in beyond.assumptions)


def test_gaia_sends_the_fraction_that_was_fitted():
    model = fitted("gaia")
    found = simulate(small(algorithm="gaia", theta=0.4), model)
    assert model.sent_fraction(0.4, 1.0) == pytest.approx(1 / 6)
    assert found.saving == pytest.approx(3.0, rel=1e-4)  # a sixth of the values, with their indices


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"controller": "hill"}, "controller: got 'hill'; allowed: one of fixed, hill_climbing"),
        ({"theta": 2.5}, "theta: got 2.5; allowed: a whole number from 1"),
        ({"thetas": [20, 5]}, "thetas: got .*ascending"),
        ({"thetas": [5, 10.5]}, r"thetas.1: got 10.5; allowed: a whole number"),
        ({"controller": "annealing", "theta": 7}, "theta: got 7.0; allowed: one of thetas: 5, 10"),
        (
            {"controller": "annealing", "algorithm": "bsp"},
            "controller: got 'annealing'; allowed: fixed with one theta, 1",
        ),
        ({"controller": "annealing", "travel_every": 0}, "travel_every: got 0; allowed: 1 or more"),
        ({"controller": "annealing", "steps": 300}, "travel_every: got 500; allowed: at most 300"),
        ({"step_s": [1, 2]}, "step_s: .*5 numbers"),
        ({"failures": [{"partition": 5, "at_s": 1}]}, "failures.0.partition: got 5; allowed: a partition from 0 to 4"),
        ({"sizes": {}}, "sizes.parameters: missing; required"),
        ({"wan": {"bytes_per_s": 0}}, "wan.bytes_per_s: got 0"),
        ({"steps": 1_000_000, "jitter": 0.1, "wan": {"partitions": 40}}, "steps: .*with jitter at most 500000"),
        ({"stepz": 5}, "stepz: got 5; allowed: no such key"),
    ],
)
def test_bad_settings_are_refused(raw, message):
    with pytest.raises(InputError, match=message):
        read(Decentralized, raw)


def test_a_setting_is_read_from_a_file_and_keeps_what_it_assumes(tmp_path):
    path = tmp_path / "training.yaml"
    path.write_text("algorithm: fedavg\nskew: 0.5\nwan: {partitions: 2, bytes_per_s: [[0, 1.0e6], [2.0e6, 0]]}\n")
    setting = Decentralized.load(path)
    assert setting.wan.rate(1, 0, 0) == 2_000_000
    assert [told.split(":")[0] for told in setting.assumptions] == ["step_s", "sizes"]
    other = setting.with_(step_s=1.0, algorithm="dgc")
    assert [told.split(":")[0] for told in other.assumptions] == ["sizes", "sizes.tensors"]
    assert other.thetas == KNOBS["dgc"].thetas
    assert setting.with_(controller="annealing").travel_every == 500
    assert setting.with_(controller="annealing").with_(controller="fixed") == setting.with_(skew=0.5) == setting
