"""A byte-level tokenizer with random merges, and a harness that renders, strips and re-encodes its history."""

from __future__ import annotations

import random
import re

import numpy as np

from components.records import Turn

SPECIALS = ["<|user|>", "<|assistant|>", "<|end|>"]
LETTERS = ["a", "b", "c", "ab", "cab", " ", "  ", "\n", "{", "}", '"', ")", "é", "漢", "x1"]
END = 2
LAYERS, TOPK, EXPERTS = 2, 2, 8


class ToyTokenizer:
    """Greedy longest match over bytes, random merges and three special tokens."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        pieces = {"".join(rng.choices(LETTERS, k=rng.randint(2, 3))).encode() for _ in range(60)}
        pieces |= {piece for letter in ("é", "漢") for piece in (letter.encode()[:2],)}
        self.table = [s.encode() for s in SPECIALS] + [bytes([b]) for b in range(256)]
        self.table += sorted(pieces - set(self.table))
        self.ids = {piece: i for i, piece in enumerate(self.table)}
        self.longest = max(map(len, self.table))

    def _plain(self, data: bytes) -> list[int]:
        out, at = [], 0
        while at < len(data):
            size = next(n for n in range(self.longest, 0, -1) if self.ids.get(data[at : at + n], 0) > END)
            out.append(self.ids[data[at : at + size]])
            at += size
        return out

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text):
            out += [SPECIALS.index(part)] if part in SPECIALS else self._plain(part.encode())
        return out

    def decode(self, ids) -> str:
        return b"".join(self.table[i] for i in ids).decode(errors="replace")

    def encode_with_offsets(self, text: str):
        ids, offsets, at = self.encode(text), [], 0
        for i in ids:
            size = len(self.table[i].decode(errors="replace"))
            offsets.append((at, at + size))
            at += size
        return ids, offsets

    def sample(self, text: str, rng: random.Random) -> list[int]:
        """A split of `text` as a policy at high temperature draws it: any tokens that spell it."""
        data, out, at = text.encode(), [], 0
        while at < len(data):
            sizes = [n for n in range(1, self.longest + 1) if self.ids.get(data[at : at + n], 0) > END]
            size = rng.choice(sizes) if rng.random() < 0.3 else max(sizes)
            out.append(self.ids[data[at : at + size]])
            at += size
        return out


def make_turn(prompt, completion, *, version=0, rng=None, routing=True) -> Turn:
    """A turn with random log-probs and routing rows that no other turn has."""
    rng = rng or np.random.default_rng(len(prompt))
    rows = len(prompt) + len(completion) - 1
    return Turn(
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        logprobs=-rng.random(len(completion)).astype(np.float32) - 0.01,
        routing=rng.integers(0, EXPERTS, (rows, LAYERS, TOPK)).astype(np.uint8) if routing else None,
        weight_version=version,
        finish_reason="stop",
    )


def words(rng: random.Random, most: int) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(1, most)))


def render(messages: list[tuple[str, str]], opener: str, tail: str) -> str:
    """The whole conversation as text, open for the assistant's next answer."""
    body = "".join(f"<|{role}|>{text}<|end|>\n" for role, text in messages)
    return body + opener + tail


def converse(tokenizer: ToyTokenizer, rng: random.Random, turns: int, mode: str):
    """Plays a conversation. Returns its turns, and for each the text that follows its answer in the next prompt.

    Modes: `reencode` renders and encodes the whole history each turn; `strip` also strips answers and drops the
    generation prompt's tail from history; `edit` sometimes rewrites an answer.
    """
    tail = "  \n" if mode != "reencode" else ""
    messages = [("user", words(rng, 20))]
    out, glue = [], []
    numbers = np.random.default_rng(rng.randrange(2**32))
    for _ in range(turns):
        prompt = tokenizer.encode(render(messages, "<|assistant|>", tail))
        answer = words(rng, 40)
        out.append(make_turn(prompt, [*tokenizer.sample(answer, rng), END], rng=numbers))
        kept = answer.strip() if mode == "strip" else answer
        if mode == "edit" and rng.random() < 0.3:
            kept = kept[: len(kept) // 2] + "!"
        observation = words(rng, 20)
        messages += [("assistant", kept), ("user", observation)]
        glue.append(f"\n<|user|>{observation}<|end|>\n<|assistant|>{tail}")
    return out, glue
