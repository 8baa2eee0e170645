"""Random tokenizers, and a harness that renders, strips, re-serialises and re-encodes its history."""

from __future__ import annotations

import json
import random
import re

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Model

from components.records import Turn
from components.tito import BpeTokenizer

SPECIALS = ["<|user|>", "<|assistant|>", "<|end|>"]
LETTERS = ["a", "b", "c", "ab", "cab", " ", "  ", "\n", "{", "}", '"', ")", "é", "漢", "x1"]
END = 2
LAYERS, TOPK, EXPERTS = 2, 2, 8


class NonCanonical:
    """What a tokenizer of `table` (bytes of each id, special tokens first) draws at high temperature."""

    table: list[bytes]

    def sample(self, text: str, rng: random.Random) -> list[int]:
        """Any ids that spell `text`: now and then other ones than the tokenizer would choose."""
        ids = {piece: number for number, piece in enumerate(self.table) if number > END}
        longest = max(map(len, ids))
        data, out, at = text.encode(), [], 0
        while at < len(data):
            sizes = [n for n in range(1, longest + 1) if data[at : at + n] in ids and at + n <= len(data)]
            size = rng.choice(sizes) if rng.random() < 0.3 else max(sizes)
            out.append(ids[data[at : at + size]])
            at += size
        return out


class ToyTokenizer(NonCanonical):
    """Greedy longest match over bytes, random pieces and three special tokens."""

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


class RandomBpe(BpeTokenizer, NonCanonical):
    """The library's byte-level BPE with random merges, of the kind that models have."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        shown = _shown_bytes()
        self.table = [s.encode() for s in SPECIALS] + [bytes([b]) for b in range(256)]
        merges = []
        pool = [bytes([b]) for b in set("".join(LETTERS).encode())]
        for _ in range(80):
            left, right = rng.choice(pool), rng.choice(pool)
            if left + right not in self.table and len(left + right) <= 8:
                merges.append((_show(left, shown), _show(right, shown)))
                self.table.append(left + right)
                pool += [left + right] * 2
        vocabulary = {_show(piece, shown): number for number, piece in enumerate(self.table)}
        vocabulary |= {special: number for number, special in enumerate(SPECIALS)}
        model = Model(models.BPE(vocabulary, merges))
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        model.decoder = decoders.ByteLevel()
        model.add_special_tokens([AddedToken(special, special=True) for special in SPECIALS])
        super().__init__(model)


def _shown_bytes() -> list[str]:
    """The character by which byte-level BPE shows each byte: itself where it can be seen, else the next free one."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(free)) for byte in range(256)]


def _show(piece: bytes, shown: list[str]) -> str:
    return "".join(shown[byte] for byte in piece)


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


def render(messages: list[tuple[str, str]], tail: str, *, marked: bool) -> str:
    """The whole conversation as text, open for the assistant's next answer. Unmarked, roles are plain words."""
    if not marked:
        return "".join(f"{role}: {text}\n" for role, text in messages) + "assistant:" + tail
    return "".join(f"<|{role}|>{text}<|end|>\n" for role, text in messages) + "<|assistant|>" + tail


MODES = ("reencode", "strip", "edit", "reasoning", "json", "glue")


def converse(tokenizer: NonCanonical, rng: random.Random, turns: int, mode: str):
    """Plays a conversation. Returns its turns, and for each the text that follows its answer in the next prompt.

    Every turn renders and encodes the whole history. What else is done to it: `strip` strips answers and drops the
    generation prompt's tail; `edit` sometimes rewrites an answer; `reasoning` drops what was thought in front of it;
    `json` writes its JSON anew; `glue` has no markers between the roles, so that tokens of the history cross the ends
    of answers, and a space at the end of the generation prompt.
    """
    marked = mode != "glue"
    tail = {"strip": "  \n", "edit": "  \n", "glue": " "}.get(mode, "")
    messages = [("user", words(rng, 20))]
    out, glue = [], []
    numbers = np.random.default_rng(rng.randrange(2**32))
    for _ in range(turns):
        prompt = tokenizer.encode(render(messages, tail, marked=marked))
        answer, kept = _answer(rng, mode)
        drawn = tokenizer.sample(answer, rng)
        out.append(make_turn(prompt, [*drawn, END] if marked else drawn, rng=numbers))
        observation = words(rng, 20)
        messages += [("assistant", kept), ("user", observation)]
        roles = ("\n<|user|>", "<|end|>\n<|assistant|>") if marked else ("\nuser: ", "\nassistant:")
        glue.append(f"{roles[0]}{observation}{roles[1]}{tail}")
    return out, glue


def _answer(rng: random.Random, mode: str) -> tuple[str, str]:
    """A sampled answer, and what its harness makes of it in the history."""
    answer = words(rng, 40)
    match mode:
        case "strip":
            return answer, answer.strip()
        case "edit" if rng.random() < 0.3:
            return answer, answer[: len(answer) // 2] + "!"
        case "reasoning":
            return f"({words(rng, 20)}){answer}", answer
        case "json":
            value = {words(rng, 3): [rng.randint(0, 9), words(rng, 5)], "b": words(rng, 9)}
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False), json.dumps(value, ensure_ascii=False)
        case _:
            return answer, answer
