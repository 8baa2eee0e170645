"""A stored trial as a page that a person reads: complete, bounded, and harmless whatever the trial holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.artifacts import LocalStore
from components.diagnostics.trajectory import chosen, decoder, find, html, section, view
from components.diagnostics.trajectory.__main__ import EXIT_REFUSED, main
from components.diagnostics.trajectory.html import MAX_TURNS, STYLE, shown
from components.errors import ConfigError
from components.records import Turn
from components.rollout import TrialRow
from tests.diagnostics.trajectories import BATCH, CAMPAIGN, GIANT, HOSTILE, stored_campaign

MARKUP = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "table", "tr", "th", "td", "div", "p", "pre"}
MARKUP |= {"details", "summary", "b", "span", "input", "label", "ul", "li", "a"}
PLAIN = {"charset", "http-equiv", "content", "name", "lang", "class", "id", "title", "type", "for", "checked", "open"}
PLAIN |= {"rel", "href"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return stored_campaign(tmp_path_factory.mktemp("trajectories"))


def seen(store, name):
    found = find(store, name)
    return view(found, decoder(store, found.campaign))


class Read(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def test_every_sampled_token_is_shown_once_with_what_the_trainer_said_of_it(store):
    plain = seen(store, "plain")
    trial = find(store, "plain").trial
    for turn, viewed in zip(trial.turns, plain.turns, strict=True):
        assert [each for piece in viewed.pieces for each in piece.ids] == turn.completion_ids.tolist()
        assert sum(piece.logprob for piece in viewed.pieces) == pytest.approx(float(turn.logprobs.sum()), rel=1e-5)
        assert all(piece.gap == pytest.approx(0.02 * len(piece.ids), abs=1e-5) for piece in viewed.pieces)
    assert [turn.case for turn in plain.turns] == [None, "strict", "split"]
    assert [turn.chunk for turn in plain.turns] == [0, 0, 1]
    assert [turn.shown for turn in plain.turns] == ["task\n$ ", "a.txt\n$ ", "shorter\n$ "]
    assert [turn.keystrokes for turn in plain.turns] == [("ls\n",), (), ()]
    assert plain.turns[2].problem == "no JSON object in the answer"
    assert [piece.advantage for piece in plain.turns[0].pieces[:2]] == [pytest.approx(0.3)] * 2
    assert [piece.advantage for piece in plain.turns[2].pieces[:2]] == [pytest.approx(-0.05)] * 2


def test_a_character_of_several_tokens_is_one_piece(store):
    pieces = seen(store, "hostile").turns[0].pieces
    assert [len(piece.ids) for piece in pieces if piece.text == "\U0001f600"] == [4, 4]
    assert [len(piece.ids) for piece in pieces if piece.text in ("\u4f60", "\u00e9")] == [3, 2, 3, 2]
    assert not any("\ufffd" in piece.text for piece in pieces)


def test_bytes_that_are_no_character_are_shown_one_by_one(store):
    """They were drawn so: what follows them keeps its place."""
    found = find(store, "plain")
    tokenizer = decoder(store, CAMPAIGN)
    torn = [*tokenizer.encode("\U0001f600")[:2], *tokenizer.encode("ls")]
    drawn = Turn(np.int32([1]), np.int32(torn), np.float32([-1] * 4), None, 3, "stop")
    alone = replace(found, trial=replace(found.trial, turns=[drawn]), samples=(), figures={})
    (turn,) = view(alone, tokenizer).turns
    assert [piece.text for piece in turn.pieces] == ["\ufffd", "\ufffd", "l", "s"]


def test_what_was_never_stored_is_absent_and_said(store):
    evaluated = seen(store, "judge")
    assert not evaluated.judged
    assert {turn.trained for turn in evaluated.turns} == {None}
    page = html(evaluated)
    assert "log-probs of this trial are not stored" in page
    assert 'id="gap"' not in page
    assert "not resolved" in page


def test_the_page_tells_the_reward_the_assertions_the_end_and_the_tampering(store):
    page = Read(html(seen(store, "hostile"))).text
    assert "The verifier reports tampering" in page
    assert f"planted {HOSTILE[0]}" in page
    assert "turn_limit: it had no turn left" in page
    assert "0, 0 of 1 assertions earned credit" in page
    plain = Read(html(seen(store, "plain"))).text
    assert re.search(r"passed\s*kept\s*passed untouched", plain)
    assert re.search(r"passed\s*made\s*failed untouched", plain)
    assert "split 1" in plain
    assert "strict 1" in plain


def test_nothing_of_a_hostile_trial_becomes_markup_or_a_control_character(store):
    page = html(seen(store, "hostile"), {"trace": "https://mlflow/#/1", "no": "javascript:alert(1)"})
    read = Read(page)
    assert {tag for tag, _ in read.elements} <= MARKUP
    assert {name for _, attributes in read.elements for name in attributes} <= PLAIN
    assert [attributes["href"] for tag, attributes in read.elements if tag == "a"] == ["https://mlflow/#/1"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", page)
    assert "\u241b[2J" in page, "an escape is shown, not obeyed"
    assert "\u27e8U+202E\u27e9" in page
    assert len(page) < 2_000_000, "a line of 200,000 characters is cut"
    assert f"[\u2026 {len(GIANT) - 20_000 + len(''.join(HOSTILE))} characters left out \u2026]" in read.text


def test_the_policy_of_the_page_allows_its_own_style_sheet_and_nothing_else(store):
    read = Read(html(seen(store, "plain")))
    (policy,) = [a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not any("style" in attributes for _, attributes in read.elements)
    assert STYLE in html(seen(store, "plain"))


@given(st.text(alphabet=st.characters(blacklist_categories=()), max_size=60))
def test_no_text_escapes(text):
    told = shown(text)
    assert not set(told) & set("<>\"'")
    told.encode()
    assert all(char in "\n\t" or char.isprintable() or char > "\x9f" for char in told)
    read = Read(f'<p title="{told}">{told}</p>')
    assert [tag for tag, _ in read.elements] == ["p"]
    assert read.elements[0][1].keys() == {"title"}


def test_a_page_is_bounded_however_many_turns_there_were(store):
    plain = seen(store, "plain")
    page = html(replace(plain, turns=plain.turns[:1] * 2_000))
    assert f"{2_000 - MAX_TURNS} turns are left out here" in page
    assert len(page) < 20_000_000


def test_the_command_writes_a_page_and_an_atif_document(store, tmp_path, capsys):
    assert main([store.url, "plain", "--out", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").read_text() == html(seen(store, "plain"))
    assert main([store.url, "plain", "--campaign", CAMPAIGN, "--atif", "--out", str(tmp_path / "a.json")]) == 0
    assert json.loads((tmp_path / "a.json").read_text())["trajectory_id"] == "plain"
    assert not list(tmp_path.glob(".*"))
    assert capsys.readouterr().out.split() == [str(tmp_path / "a.html"), str(tmp_path / "a.json")]
    assert main([store.url, "plain", "--out", str(tmp_path / "none" / "a.html")]) == EXIT_REFUSED


def test_a_trial_that_has_no_page_says_why(store, capsys):
    assert main([store.url, "nobody"]) == EXIT_REFUSED
    assert "none of the 2 batches" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="step 3 has it as cancelled: of such a trial no turn is stored"):
        find(store, "cut")


def test_damage_is_told_and_no_page_is_written(tmp_path, capsys):
    store = stored_campaign(tmp_path)
    file = store.tree(BATCH) / "arrays.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main([store.url, "plain", "--out", str(tmp_path / "x.html")]) == EXIT_REFUSED
    assert re.search(r"could not be looked at: .*arrays.safetensors", capsys.readouterr().err)
    assert not (tmp_path / "x.html").exists()
    file.write_bytes(bytes(data[:-1]) + bytes([data[-1] ^ 1]))
    store.delete(f"campaigns/{CAMPAIGN}/tokenizer")
    assert main([store.url, "plain", "--out", str(tmp_path / "x.html")]) == EXIT_REFUSED
    assert f"there is no campaigns/{CAMPAIGN}/tokenizer" in capsys.readouterr().err
    assert main([store.url, "plain", "--tokenizer", str(tmp_path / "model"), "--out", str(tmp_path / "x.html")]) == 0


def row(name: str, **changes) -> TrialRow:
    told = dict.fromkeys(TrialRow.__slots__) | {"trial_id": name, "task_id": f"of {name}", "stop": "completed"}
    told |= {"reward": 0.1, "resolved": False, "passed": 1, "total": 2, "turns": 3, "sampled": 30, "tampering": 0}
    return TrialRow(**(told | changes))


def test_trials_are_chosen_for_what_is_odd_about_them_each_once():
    rows = [
        (0, row("near", reward=0.0, assertions=4)),
        (0, row("far", reward=0.0, assertions=1, gap=0.3, turns=20)),
        (1, row("surprise", advantage=-0.9, gap=0.01)),
        (1, row("best", reward=0.5, advantage=0.4)),
        (1, row("cheat", tampering=2)),
        (1, row("dull")),
    ]
    found = {each.row.trial_id: each for each in chosen(rows)}
    assert list(found) == ["cheat", "far", "surprise", "near", "best"]
    assert found["far"].reasons == ("largest log-prob gap between sampler and trainer: 0.3", "most turns: 20")
    assert chosen([]) == []
    text = section(chosen(rows), {"far": {"page": "trajectories/far.html"}})
    assert "| `far` [page](trajectories/far.html) | 0 |" in text
    assert "`near` | 0 |" in text


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 1), st.integers(0, 9)), max_size=12))
def test_the_choice_is_small_and_does_not_hang_on_the_order(given_rows):
    rows = [
        (step, row(str(number), gap=None if odd else gap, turns=turns, reward=gap * odd))
        for number, (step, odd, gap, turns) in enumerate(given_rows)
    ]
    found = chosen(rows)
    assert len(found) <= 6
    assert len({each.row.trial_id for each in found}) == len(found)
    assert found == chosen(rows[::-1])


def test_the_rows_of_a_step_hold_what_the_choice_needs(store):
    rows = [TrialRow(**each) for each in store.get_json(f"campaigns/{CAMPAIGN}/rl/trials/000003")]
    assert [(each.trial_id, each.turns, each.tampering, each.assertions) for each in rows] == [
        ("plain", 3, None, 2),
        ("hostile", 1, 1, 1),
    ]
    assert rows[0].gap == pytest.approx(0.02, abs=1e-5)
    loss = [sample.loss_mask.sum() for sample in find(store, "plain").samples]
    assert rows[0].advantage == pytest.approx(float(np.average([0.3, -0.05], weights=loss)), abs=1e-5)
