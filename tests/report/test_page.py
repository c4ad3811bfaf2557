"""The page: self-contained, escaped, whole or absent."""

import json
import re
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from sim.engine.step import Step, simulate
from sim.report import answer, answer_tuned, ranking, save_html
from sim.report.html import page
from sim.report.markup import differences, script_json
from sim.report.numbers import shorten, time_unit
from sim.report.ranked import ranked
from sim.report.search import search_section
from sim.report.table import COLUMNS, formatted
from sim.report.text import answer_run, critical_words, robust_words
from sim.run import whole_run
from sim.specs import Cluster, InputError, Model, Plan, Training
from sim.tuner.robustness import Flip
from sim.tuner.tune import Tuned, tune
from sim.units import percent
from tests.report.conftest import CLUSTER, HOSTILE, model


class Elements(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep one element."""
        self.found.append((tag, dict(attrs)))


def elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the elements of a page without plotly.js, which holds markup in strings."""
    parser = Elements()
    parser.feed(text.replace(get_plotlyjs(), ""))
    return parser.found


@pytest.mark.slow
def test_nothing_is_fetched_and_plotly_is_there_once(tuned: Tuned) -> None:
    text = page(tuned)
    assert text.count(get_plotlyjs()) == 1 and len(text) < 6e6
    found = elements(text)
    assert not [a for _, a in found if "src" in a or "href" in a or "srcset" in a]
    assert not [tag for tag, _ in found if tag in ("link", "iframe", "img", "object", "base")]
    assert "@import" not in text.replace(get_plotlyjs(), "") and "default-src 'none'" in text


def test_hostile_names_are_text(tuned: Tuned) -> None:
    own = page(tuned).replace(get_plotlyjs(), "")
    assert "<script>alert" not in own and 'onerror="' not in own.replace("onerror=&quot;", "")
    scripts = [a for tag, a in elements(own) if tag == "script"]
    assert sum("type" not in a for a in scripts) == 2  # plotly.js and the page's own
    assert all(a["type"] == "application/json" for a in scripts if "type" in a)
    assert HOSTILE[:20].replace("<", "&lt;").replace(">", "&gt;") in own


def test_data_cannot_leave_its_script_element() -> None:
    assert "<" not in script_json({"a": "</script><!--"}) and json.loads(script_json("</script>")) == "</script>"


def test_dark_values_are_kept_as_differences() -> None:
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == [(["a", 1, "b"], 3)]
    assert differences([1], [1, 2], ("x",)) == [(["x"], [1, 2])]


def test_a_search_shows_its_ranking_and_why(tuned: Tuned) -> None:
    text = page(tuned)
    titles = (
        "Ranked plans",
        "Why this plan",
        "Memory",
        "What faster hardware would buy",
        "What was searched",
        "How sure",
    )
    for title in (*titles, "Make this report again"):
        assert f"<h2>{title}</h2>" in text
    rows = ranking(tuned)
    assert [r["rank"] for r in rows] == [1, 2, 3] and rows[0]["why"] == tuned.best.why[0]
    assert list(formatted(rows[0])) == list(COLUMNS)
    assert f"{tuned.excluded and max(tuned.excluded.values()):,}".replace(",", "\u2009") in text


def test_a_model_of_any_size_is_told_in_words() -> None:
    large = Model(name="gpt-1t", layers=128, hidden=25600, heads=160, vocab=51200, seq=2048)
    cluster = Cluster.of("h100-sxm-80gb", nodes=128)
    step = simulate(large, cluster, Plan(tp=8, pp=64, micro_batch=1, global_batch=64, schedule="1f1b"))
    assert "1.01 trillion parameters, sequence 2048" in page(step)


def test_the_command_of_a_step_names_its_engine() -> None:
    plan = Plan(tp=2, pp=4, global_batch=16)
    again = {engine: page(simulate(model(), CLUSTER, plan, engine)) for engine in ("path", "events")}
    assert "trainsim simulate job.json --html report.html" in again["path"]
    assert "trainsim simulate job.json --engine events --html report.html" in again["events"]


def test_a_search_says_how_sure_its_order_is(tuned: Tuned) -> None:
    assert sum(r["p_best"] or 0 for r in ranking(tuned)) == pytest.approx(1)
    words, drawn = robust_words(tuned.robustness), tuned.robustness.times_s.shape[1]
    assert words.startswith(f"Under {drawn} sampled calibrations the winner takes ") and escape(words) in page(tuned)
    assert "p_best" in ranked(tuned).names
    assert "p_best" not in ranked(replace(tuned, plans=tuple(replace(p, p_best=None) for p in tuned.plans))).names
    turned = replace(tuned.robustness, p_best=(0.3, 0.1, 0.6))
    assert "Plan 3 is the fastest in more draws (60\u00a0%) than plan 1 (30\u00a0%)" in robust_words(turned)
    assert "more draws" not in robust_words(replace(tuned.robustness, p_best=(0.6, 0.1, 0.3)))
    flip = Flip(3, "gemm_slowdown", "time of matrix products", 1.0, 0.8, -1.5)
    assert "plan 3 wins if the time of matrix products is 20\u00a0% lower than assumed (1.00 → 0.800, 1.50" in (
        robust_words(replace(tuned.robustness, flip=flip))
    )
    flip = Flip(2, "host_s_per_launch", "issue time of a kernel", 5e-6, 8.39e-6, 1.24)
    assert "(5.00 µs → 8.39 µs, 1.24 standard" in robust_words(replace(tuned.robustness, flip=flip))


def test_a_search_that_ran_out_of_time_is_not_said_to_have_run_out_of_plans(tuned: Tuned) -> None:
    text = search_section(replace(tuned, gap=0.5, same_order=True))
    assert "no: the limit of time or of plans was reached" in text and percent(0.5) in text


def test_a_step_that_does_not_fit_says_by_how_much_and_what_helps(overfull: Step) -> None:
    text = page(overfull)
    assert "does not fit: over by" in text and "Single changes that save memory" in text


def test_the_answer_names_time_idle_and_memory(step: Step, tuned: Tuned) -> None:
    assert re.match(
        r".+ a step \(.+–.+\); pipeline idle .+ %; pipeline rank \d+ peaks at .+ allocated of 85\.5\.$",
        answer(step).replace("\u00a0", " "),
    )
    assert answer_tuned(tuned).startswith("Best of ")


def test_the_job_of_a_report_searches_the_same_space() -> None:
    """What is not searched comes from the job's plan, and whether stages may differ is a knob like the others."""
    knobs = {"tp": [1, 2], "pp": [1], "recompute": ["full"], "unequal_stages": [False]}
    text = page(tune(model(), CLUSTER, 16, knobs, top=1, plan=Plan(global_batch=16, precision="fp16")))
    job = json.loads(unescape("{" + text.rpartition("<code>{")[2].partition("</code>")[0]))
    assert job["tune"]["knobs"] == knobs and job["plan"]["precision"] == "fp16" and "tp" not in job["plan"]


def test_a_file_is_whole_or_absent(step: Step, tmp_path: Path) -> None:
    target = save_html(step, tmp_path / "step.html")
    assert target.read_text("utf-8").endswith("</html>\n") and list(tmp_path.iterdir()) == [target]
    with pytest.raises(InputError, match=r"^path: got .*; allowed: a file in an existing folder$"):
        save_html(step, tmp_path / "missing" / "step.html")
    assert list(tmp_path.iterdir()) == [target]


def test_numbers_stay_short_at_the_extremes() -> None:
    assert time_unit(3e-9).text(3e-9) == "3.00 ns" and time_unit(0).name == "ns"
    assert percent(0.0912) == "9.1\u00a0%" and percent(0.34) == "34\u00a0%" and shorten("x" * 41) == "x" * 39 + "…"


@pytest.mark.slow
def test_the_whole_run_stands_on_the_page_where_there_is_one(step: Step) -> None:
    run = whole_run(step, Training(tokens=1e12, pue=1.2))
    text = page(step, run=run)
    assert "<h2>The whole run</h2>" in text and "USD" in text and "devices only, times PUE" in text
    assert "The whole run" not in page(step)


def test_a_run_in_one_sentence(step: Step) -> None:
    run = whole_run(step, Training(tokens=1e12))
    assert re.fullmatch(
        r"1\.00 trillion tokens: \S+ days \(\S+–\S+\), [^,]+ GPU-hours, [^,]+ USD, \S+ MWh\.", answer_run(run)
    )
    short = whole_run(step, Training(steps=100, usd_per_gpu_hour=0.0))
    assert " hours (" in answer_run(short) and " 0 USD" in answer_run(short)


def test_the_critical_path_is_said_in_words(step: Step) -> None:
    words = critical_words(step)
    assert re.fullmatch(r"Critical path: \w.* \d+\s%, .*; changes ranks \d+ times, \d+\s% on pipeline rank \d\.", words)
    shares = [float(s) for s in re.findall(r"([\d.]+)\s%", words.split(";")[0])]
    assert shares == sorted(shares, reverse=True)
    assert words in unescape(page(step))
