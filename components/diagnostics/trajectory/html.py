"""A trial as one page: nothing is fetched, no script runs, no text of a task or a policy becomes markup.

Invariants: every text passes `shown`, which leaves no character that could be markup, a control sequence or a change of
direction; the page's own Content-Security-Policy forbids everything but its one style sheet, by its hash; its size is
bounded whatever the trial's.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from components.diagnostics.trajectory.view import Piece, View, ViewedTurn

GAPS = (0.01, 0.03, 0.1, 0.3, 0.6931)
"""|log-prob gap| from which on a token takes the next colour; the last is R3's danger line, ln 2."""
SURPRISES = (0.1, 0.5, 1.0, 2.0, 4.0)
"""-log-prob, nats, likewise."""
MAX_TURNS, MAX_TOKENS, MAX_CHARS = 400, 40_000, 2_000_000
"""Of a page: more turns are left out in the middle, more tokens and text in the middle of each turn."""
MIN_TURN_TOKENS, MIN_TURN_CHARS = 60, 1_000
MAX_COMMANDS = 20
"""Of a turn; its whole answer stands above them."""
MAX_TEXT = 20_000
"""Characters of any one text."""

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 1.5rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
pre, code, .tokens { font: 13px/1.45 ui-monospace, monospace; }
pre, .tokens { white-space: pre-wrap; overflow-wrap: anywhere; margin: .25rem 0; padding: .5rem .75rem; }
pre { background: #f6f8fa; border-left: 3px solid #d0d7de; max-height: 32rem; overflow: auto; }
.typed { background: #eef6ff; border-left-color: #4c78a8; }
.problem { background: #fff1e5; border-left-color: #bc4c00; }
.tokens { border: 1px solid #d8dee4; border-radius: 4px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d8dee4; padding: .2rem .75rem .2rem 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
details { border-top: 1px solid #d8dee4; padding: .5rem 0; }
summary { cursor: pointer; }
.small { color: #59636e; font-size: .85rem; } .bad { color: #b42318; font-weight: 600; } .good { color: #1a7f37; }
.alarm { background: #ffebe9; border: 1px solid #b42318; padding: .5rem 1rem; border-radius: 4px; }
.turns > input { margin-left: 1rem; }
.legend b { font-weight: 400; padding: 0 .4rem; }
.u { border-bottom: 1px dotted #818b98; }
#gap:checked ~ * .g1, .legend .g1 { background: #fff7d6; } #gap:checked ~ * .g2, .legend .g2 { background: #ffe39a; }
#gap:checked ~ * .g3, .legend .g3 { background: #ffc078; } #gap:checked ~ * .g4, .legend .g4 { background: #ff9470; }
#gap:checked ~ * .g5, .legend .g5 { background: #e5484d; color: #fff; }
#sure:checked ~ * .s1, .legend .s1 { background: #eef3ff; } #sure:checked ~ * .s2, .legend .s2 { background: #d3e0ff; }
#sure:checked ~ * .s3, .legend .s3 { background: #a9c2ff; } #sure:checked ~ * .s4, .legend .s4 { background: #7a9cf5; }
#sure:checked ~ * .s5, .legend .s5 { background: #3b5bdb; color: #fff; }
#worth:checked ~ * .w1, .legend .w1 { background: #ffd8d3; } #worth:checked ~ * .w2, .legend .w2
  { background: #ff9d94; }
#worth:checked ~ * .w3, .legend .w3 { background: #d7f5dd; } #worth:checked ~ * .w4, .legend .w4
  { background: #8fdba0; }
"""
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
)
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS[ord("\r")] = 0x240D
_INVISIBLE = (*range(0x80, 0xA0), 0xAD, 0x061C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070))
_INVISIBLE += (0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xD800, 0xE000), *range(0xE0000, 0xE0080))
_SHOWN: Mapping[int, str | int] = _CONTROLS | {code: f"\u27e8U+{code:04X}\u27e9" for code in _INVISIBLE}


def shown(text: str, most: int = MAX_TEXT) -> str:
    """Any text as HTML: cut in the middle where it is too long, and nothing in it that acts or cannot be seen."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
    return escape(text.translate(_SHOWN), quote=True)


def html(seen: View, links: Mapping[str, str] | None = None) -> str:
    """The whole page. `links` (text → address, http or https) are ours, and stand at its head."""
    title = f"Trial {seen.trial_id}"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">',
        f"<title>{shown(title, 200)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{shown(title, 200)}</h1>",
        *_links(links or {}),
        *_head(seen),
        *_verdict(seen),
        *_all_turns(seen),
        *_rest(seen),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _links(links: Mapping[str, str]) -> Iterator[str]:
    safe = {text: url for text, url in links.items() if url.startswith(("http://", "https://"))}
    if safe:
        told = (f'<a rel="noreferrer" href="{shown(url)}">{shown(text)}</a>' for text, url in safe.items())
        yield f"<p>{' · '.join(told)}</p>"


def _head(seen: View) -> Iterator[str]:
    sampled = sum(turn.sampled_tokens for turn in seen.turns)
    rows = {
        "campaign, step": f"{seen.campaign}, {seen.step}",
        "stored in": seen.key,
        "task": f"{seen.task_id} ({seen.category}, {seen.difficulty})",
        "reward": f"{seen.reward:g}, {seen.passed} of {seen.total} assertions earned credit",
        "verdict": "resolved" if seen.resolved else "not resolved",
        "ended": f"{seen.stop}: {seen.why}" if seen.why else seen.stop,
        "turns": f"{len(seen.turns)}, {sampled} sampled tokens",
    }
    if seen.fallback is not None:
        rows["reward is the verdict"] = seen.fallback
    if seen.chunks:
        cases = ", ".join(f"{case} {count}" for case, count in sorted(seen.boundaries.items()) if count)
        rows["streams"] = f"{seen.chunks}; turn boundaries: {cases or 'none'}"
    yield _table(rows)


def _verdict(seen: View) -> Iterator[str]:
    if seen.tampering:
        told = "".join(f"<li>{shown(sign)}</li>" for sign in seen.tampering)
        yield f'<div class="alarm"><b>The verifier reports tampering</b> (it was reverted)<ul>{told}</ul></div>'
    yield "<h2>Assertions</h2>"
    if not seen.assertions:
        yield f'<p class="small">The verifier named none ({shown(seen.verdict_source or "no report")}).</p>'
        return
    heads = "<tr><th>outcome</th><th>assertion</th><th>before the trial</th></tr>"
    yield f"<table>{heads}{''.join(_outcomes(seen))}</table>"


def _outcomes(seen: View) -> Iterator[str]:
    for name, outcome, kind in seen.assertions:
        look = "good" if outcome == "passed" else "bad"
        yield f'<tr><td class="{look}">{shown(outcome)}</td><td>{shown(name, 500)}</td><td>{shown(kind)}</td></tr>'


def _all_turns(seen: View) -> Iterator[str]:
    yield "<h2>Turns</h2>"
    yield f'<div class="turns">{_modes(seen)}<div>'
    turns, half = seen.turns, MAX_TURNS // 2
    kept = turns if len(turns) <= MAX_TURNS else (*turns[:half], *turns[-half:])
    tokens = max(MIN_TURN_TOKENS, MAX_TOKENS // max(1, len(kept)))
    chars = min(MAX_TEXT, max(MIN_TURN_CHARS, MAX_CHARS // max(1, len(kept))))
    for place, turn in enumerate(kept):
        if place == half and len(kept) < len(turns):
            yield f'<p class="small">{len(turns) - len(kept)} turns are left out here.</p>'
        yield from _turn(turn, tokens, chars)
    yield "</div></div>"


def _modes(seen: View) -> str:
    """What tokens are coloured by: switched without a script."""
    modes = [("sure", "log-prob of the sampler", SURPRISES, "s")]
    told = ""
    if seen.judged:
        modes.insert(0, ("gap", "|log-prob gap|, sampler against trainer", GAPS, "g"))
    else:
        told = '<p class="small">The trainer\'s log-probs of this trial are not stored: there is no gap to show.</p>'
    made = [
        f'<input type="radio" name="mode" id="{name}"{" checked" if number == 0 else ""}>'
        f'<label for="{name}"> {text}</label>'
        f'<span class="legend small">{"".join(_legend(limits, letter))}</span>'
        for number, (name, text, limits, letter) in enumerate(modes)
    ]
    if seen.judged:
        signs = ("below -0.1", "below 0", "above 0", "above 0.1")
        marks = "".join(f'<b class="w{n}">{text}</b>' for n, text in zip((2, 1, 3, 4), signs, strict=True))
        made.append(
            '<input type="radio" name="mode" id="worth"><label for="worth"> advantage</label>'
            f'<span class="legend small">{marks}</span>'
        )
    return told + "".join(made)


def _legend(limits: Iterable[float], letter: str) -> Iterator[str]:
    for number, limit in enumerate(limits, start=1):
        yield f'<b class="{letter}{number}">{limit:g}</b>'


def _turn(turn: ViewedTurn, tokens: int, chars: int) -> Iterator[str]:
    told = [f"{turn.prompt_tokens} tokens before it", f"{turn.sampled_tokens} sampled", turn.finish_reason]
    told.append(f"weights {turn.weight_version}")
    if turn.case is not None:
        told.append(f"boundary: {turn.case}")
    if turn.trained is not None:
        told.append(f"trained in stream {turn.chunk}" if turn.trained else "no loss: not trained")
    yield f'<details open id="turn-{turn.number}"><summary><b>Turn {turn.number}</b> '
    yield f'<span class="small">{shown(" · ".join(told))}</span></summary>'
    yield f"<pre>{shown(turn.shown, chars)}</pre>"
    yield f'<div class="tokens">{_tokens(turn, tokens)}</div>'
    if turn.problem is not None:
        yield f'<pre class="problem">{shown(turn.problem, chars)}</pre>'
    for typed in turn.keystrokes[:MAX_COMMANDS]:
        yield f'<pre class="typed">{shown(typed, max(200, chars // MAX_COMMANDS))}</pre>'
    if len(turn.keystrokes) > MAX_COMMANDS:
        yield f'<p class="small">{len(turn.keystrokes) - MAX_COMMANDS} more commands are in the answer above.</p>'
    yield "</details>"


def _tokens(turn: ViewedTurn, most: int) -> str:
    pieces, half = turn.pieces, most // 2
    if len(pieces) <= most:
        return "".join(_piece(piece, turn.trained) for piece in pieces)
    cut = f'<span class="small">[… {len(pieces) - 2 * half} tokens left out …]</span>'
    head, tail = pieces[:half], pieces[-half:]
    return "".join([*(_piece(p, turn.trained) for p in head), cut, *(_piece(p, turn.trained) for p in tail)])


def _piece(piece: Piece, trained: bool | None) -> str:
    looks = [f"s{_step(-piece.logprob, SURPRISES)}"]
    told = [f"id {' '.join(map(str, piece.ids))}", f"log-prob {piece.logprob:.4f}"]
    if piece.gap is not None:
        looks.append(f"g{_step(piece.gap, GAPS)}")
        told += [f"trainer {piece.trainer:.4f}", f"gap {piece.gap:.4f}"]
    if piece.advantage is not None:
        looks.append(f"w{_worth(piece.advantage)}")
        told.append(f"advantage {piece.advantage:+.4f}")
    if piece.value is not None:
        told.append(f"value {piece.value:.4f}")
    if trained is False:
        looks.append("u")
        told.append("no loss")
    return f'<span class="{" ".join(looks)}" title="{shown(", ".join(told))}">{shown(piece.text, 200)}</span>'


def _step(value: float, limits: Iterable[float]) -> int:
    """How many of the limits a value has reached; one that is no number is shown as the worst."""
    return sum(not value < limit for limit in limits)


def _worth(advantage: float) -> int:
    """1 and 2 for what was worth less than expected, 3 and 4 for more; 0 for neither."""
    if advantage == 0:
        return 0
    return (2 if abs(advantage) > 0.1 else 1) + (2 if advantage > 0 else 0)


def _rest(seen: View) -> Iterator[str]:
    if seen.left_running:
        yield f"<h2>Left running</h2><pre>{shown(chr(10).join(seen.left_running))}</pre>"
    if seen.timings_s:
        yield "<h2>Seconds by phase</h2>"
        yield _table({name: f"{seconds:.3f}" for name, seconds in sorted(seen.timings_s.items())})
    if seen.facts:
        yield "<h2>Facts</h2>"
        yield _table({name: json.dumps(value, default=str) for name, value in sorted(seen.facts.items())})


def _table(rows: Mapping[str, str]) -> str:
    made = (f"<tr><th>{shown(name, 200)}</th><td>{shown(value, 2_000)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(made)}</table>"
