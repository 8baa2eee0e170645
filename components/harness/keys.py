"""Keystrokes as tmux takes them: a text that is the name of a key is that key, any other text is typed as it stands."""

from __future__ import annotations

import re

ESCAPE = "\x1b"
NAMED = {
    "Enter": "\r",
    "Escape": ESCAPE,
    "Space": " ",
    "Tab": "\t",
    "BTab": f"{ESCAPE}[Z",
    "BSpace": "\x7f",
    **{name: f"{ESCAPE}[{letter}" for name, letter in zip(("Up", "Down", "Right", "Left"), "ABCD", strict=True)},
    **dict.fromkeys(("Home",), f"{ESCAPE}[1~"),
    **dict.fromkeys(("IC", "Insert"), f"{ESCAPE}[2~"),
    **dict.fromkeys(("DC", "Delete"), f"{ESCAPE}[3~"),
    **dict.fromkeys(("End",), f"{ESCAPE}[4~"),
    **dict.fromkeys(("PPage", "PageUp", "PgUp"), f"{ESCAPE}[5~"),
    **dict.fromkeys(("NPage", "PageDown", "PgDn"), f"{ESCAPE}[6~"),
    **{f"F{number}": f"{ESCAPE}O{letter}" for number, letter in zip(range(1, 5), "PQRS", strict=True)},
    **{
        f"F{number}": f"{ESCAPE}[{code}~"
        for number, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
    },
}
"""What tmux sends to a program that has not asked for another keypad."""
_NAMED = {name.lower(): keys for name, keys in NAMED.items()}
CONTROL = re.compile(r"(?:C-|c-|\^)([@-_a-z?]|Space)")
META = re.compile(r"[Mm]-(.+)", re.DOTALL)


def typed(keystrokes: str) -> str:
    """The characters that a program reads for these keystrokes."""
    if (named := _NAMED.get(keystrokes.lower())) is not None:
        return named
    if (control := CONTROL.fullmatch(keystrokes)) is not None:
        key = control[1]
        return "\x00" if key == "Space" else "\x7f" if key == "?" else chr(ord(key.upper()) & 0x1F)
    if (meta := META.fullmatch(keystrokes)) is not None:
        key = typed(meta[1])
        if key != meta[1] or len(key) == 1:
            return ESCAPE + key
    return keystrokes
