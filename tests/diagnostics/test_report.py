"""Report and figures."""

import subprocess
import sys

from components.diagnostics import Evaluation, diagnose, figures, page, render
from components.diagnostics.figures import averaged
from tests.diagnostics.campaigns import RISING, records

FULL = {"resolved": 0.5, "stderr": 0.031, "assertions_passed": 0.8, "mean_reward": 0.3, "turns_mean": 4.5}


def test_the_report_says_verdict_findings_scores_and_steps():
    steps = records({"tito/drift": 0.01}, steps=40)
    evaluations = [Evaluation("base", 0, {**FULL, "trials": 256, "faults": 2}), *RISING[1:]]
    text = render("miniature", diagnose(steps, evaluations), steps, evaluations, links={"MLflow": "http://x"})
    assert text.startswith("# miniature\n\n**Verdict: red: trained tokens are not the sampled ones (drift 1.00%).**")
    assert "| base | 50.0% ± 3.1% | 80.0% | 0.300 | 4.50 | 256 | 2 |" in text
    assert "| leg-2 | 80.0% ± 3.0% | – | – | – | – | – |" in text
    assert "## Steps (40)" in text
    rows = [line for line in text.split("## Steps")[1].splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == 12
    assert rows[0].startswith("| 0 |")
    assert rows[-1].startswith("| 39 |")
    assert "- [MLflow](http://x)" in text


def test_what_changed_since_the_leg_before_is_told_first():
    early, late = records(steps=12), records({"rollout/infra_faults": lambda step: 40.0 * (step >= 12)})
    before, now = diagnose(early, RISING[:3]), diagnose(late, RISING)
    text = render("t", now, late, RISING, before=before)
    changes = text.split("## Since the leg before\n\n")[1].split("\n\n")[0].splitlines()
    assert changes == [
        "- infrastructure: ok → **RED**; 480 of 1680 launched trials ended in infrastructure faults",
        "- regression: not measured → ok; leg-2 has 80.0%, the best, leg-2, 80.0%",
    ]
    assert "No detector changed its mind." in render("t", now, late, RISING, before=now)


def test_classes_and_ends_are_tables():
    by_class = {"by_category": {"git": {"tasks": 9, "resolved": 0.5, "stderr": None}}}
    evaluations = [Evaluation("sft", 0, {**FULL, **by_class})]
    steps = records({"stop/completed": 60.0, "stop/gave_up": 0.0, "fault/sandbox": 2.0}, steps=2)
    text = render("t", diagnose(steps, evaluations), steps, evaluations)
    assert "### sft by class" in text
    assert "| category | `git` | 9 | 50.0% | – |" in text
    assert "| graded | completed | 120 |" in text
    assert "| infrastructure | sandbox | 4 |" in text
    assert "gave_up" not in text


def test_what_was_cancelled_is_told_by_class_with_what_it_did_to_its_share():
    hard = {"rollout/cancelled_by/difficulty.hard": 5.0, "rollout/share_gap/difficulty.hard": -0.04}
    steps = records({**hard, "rollout/cancelled_by/difficulty.easy": 0.0}, steps=3)
    text = render("t", diagnose(steps, []), steps, [])
    assert "| difficulty.hard | 15 | -4.0% |" in text
    assert "difficulty.easy |" not in text
    assert "Cancelled by class" not in render("t", diagnose(records(), []), records(), [])


def test_the_page_carries_its_figures_and_lets_no_text_become_markup():
    text = "# A\n\n| a | b |\n|---|---|\n| <script>alert(1)</script> | [x](javascript:alert(1)) |\n"
    made = page("<b>", text, {"reward": b"\x89PNG"})
    assert "<title>&lt;b&gt;</title>" in made
    assert "<table>" in made
    assert "<script" not in made
    assert 'href="javascript' not in made
    assert '<img alt="reward" src="data:image/png;base64,iVBORw==">' in made
    assert "://" not in made, "nothing is fetched"
    assert "default-src 'none'; img-src data:;" in made


def test_no_name_of_a_task_speaks_in_a_report_has_anything_fetched_or_reaches_a_terminal():
    # Categories are what a task says: one fetched a picture from elsewhere, another told of a verdict of its own.
    names = [
        "![p](http://evil/p.png)",
        "g|\n\n# All is well\n\n**Verdict: ok.** [x](http://evil)",
        "a\x1b[2J\u202eb`",
    ]
    by_class = {"by_category": {name: {"tasks": 1, "resolved": 0.5, "stderr": None} for name in names}}
    steps, evaluations = records(steps=2), [Evaluation("sft", 0, {**FULL, **by_class})]
    text = render("t", diagnose(steps, evaluations), steps, evaluations)
    made = page("t", text, {})
    assert all(each.isprintable() for line in text.splitlines() for each in line)
    assert "# All is well" not in text.splitlines()
    assert "<img" not in made
    assert "href" not in made
    assert made.count("<h1>") == 1
    assert "<img" not in page("t", "![p](http://evil/p.png)", {})


def test_an_empty_run_has_a_report():
    assert "not measured" in render("nothing", diagnose([], []), [], [])


def test_figures_are_images_of_what_was_measured():
    drawn = figures(records({"rollout/turns_mean": None, "rollout/tokens_mean": 300.0}), RISING)
    assert set(drawn) == {"reward", "length", "explained_variance", "gaps", "passed_over", "heldout"}
    assert all(png.startswith(b"\x89PNG") and len(png) > 2_000 for png in drawn.values())
    assert figures([], []) == {}


def test_gaps_are_averaged_as_the_papers_are():
    assert averaged([1.0, 2.0, 0.0]) == [1.0, 1.25, 0.9375]
    jagged = figures(records({"gap/engine_token_mean": lambda step: 0.01 * (step % 2)}), [])["gaps"]
    assert jagged != figures(records(), [])["gaps"]


def test_matplotlib_is_not_imported_until_a_figure_is_drawn():
    code = "import sys, components.diagnostics; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
