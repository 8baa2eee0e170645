"""The operators that work without any model: each makes a longer task of accepted ones.

Invariants: the solution is extended first, and what is given, verified and asked is aligned after it; a draft that its
operator can see to be no task is not proposed. Whether the others are tasks is for the gates to say.

| operator | what it does | our own dialect | any other |
|---|---|---|---|
| `chain` | a file that the solution leaves is the input of a further step | yes | yes |
| `constrain` | a file that it leaves must in the end be more, or other, than it was | yes | of our own steps' files |
| `extend` | a step of another family, with files of its own | yes | no |
| `compose` | two tasks in one box, where no path is of both | yes | no |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from components.pool.families import FAMILIES
from components.pool.lexicon import WORDS, Draw
from components.pool.outline import Check, Outline, Step
from components.pool.subtask import Subtask
from components.synthesis.draft import Draft
from components.synthesis.source import TOKEN, Source, paths_of
from components.synthesis.steps import CHANGES, CONSUMERS, Lines, aligned, execute, guarded

Operator = Callable[[Source, Sequence[Source], random.Random], Draft | None]
"""(the task to go on from, others that may join it, draws) -> a draft, or None where there is nothing that fits."""
PARTNERS = 200
"""Tasks that are looked at for one that shares no path."""


def chain(source: Source, others: Sequence[Source], rng: random.Random) -> Draft | None:
    """What the solution leaves is the input of a further step."""
    for f, lines in _shuffled(source.artifacts, rng):
        for family in rng.sample(sorted(CONSUMERS), len(CONSUMERS)):
            try:
                asked = CONSUMERS[family](Draw(rng, source.taken), f, lines)
            except LookupError:  # out of names
                return None
            if asked is not None:
                return _extended("chain", source, asked.step(family, terse=source.extends is None))
    return None


def constrain(source: Source, others: Sequence[Source], rng: random.Random) -> Draft | None:
    """What the solution leaves must be more, or other, than it was: executable, renamed, changed."""
    for f, lines in _shuffled(source.artifacts, rng):
        for draw_change in rng.sample([*CHANGES, None], len(CHANGES) + 1):
            if draw_change is None:
                if not any(call == ("is_executable", f) for _, call in source.outline.checks):
                    return _extended("constrain", source, execute(f).step("exec", terse=source.extends is None))
                continue
            try:
                change = draw_change(Draw(rng, source.taken), f, lines) if f in source.own else None
            except LookupError:
                return None
            before = None if change is None else aligned(source.outline.steps, f, change)
            if change is not None and before is not None:
                step = change.asked.step(change.family, terse=source.extends is None)
                return _extended("constrain", source, step, before=before)
    return None


def extend(source: Source, others: Sequence[Source], rng: random.Random) -> Draft | None:
    """A step of a family of ours, with names, words and files that nothing else has."""
    if source.extends is not None:
        return None
    for name in rng.sample(sorted(FAMILIES), len(FAMILIES)):
        try:
            subtask = Subtask(FAMILIES[name], FAMILIES[name].draw(Draw(rng, source.taken)))
        except LookupError:
            continue
        if not paths_of(Outline((subtask.step,), subtask.instance.files)) & paths_of(source.outline):
            return _extended("extend", source, subtask.step, files=subtask.instance.files)
    return None


def compose(source: Source, others: Sequence[Source], rng: random.Random) -> Draft | None:
    """Two tasks in one box, one after the other."""
    if source.extends is not None:
        return None
    paths = paths_of(source.outline)
    for other in rng.sample(others, min(len(others), PARTNERS)):
        if other.extends is None and other.path != source.path and not paths & paths_of(other.outline):
            parts = (source.outline, other.outline)
            return Draft("compose", "compose", (source, other), parts, source.turns + other.turns)
    return None


OPERATORS: dict[str, Operator] = {"chain": chain, "compose": compose, "constrain": constrain, "extend": extend}


def repair(draft: Draft, said: str, rng: random.Random) -> Draft | None:
    """What may be done about a draft whose solution did not make all that is asserted; None where nothing may.

    Of two tasks in one box the one may meet files of the other. The second meets what the first makes: it is put before
    it. The first meets what the second is given: what it looks for is called otherwise there.

    Args:
        said: what the gates said of it; it names the assertions that failed.
    """
    failed = {number for number, name in _numbered(draft.outline) if f"{name} " in said}
    if len(draft.parts) == 1 or not failed:
        return None
    first, second = draft.parts
    if min(failed) > len(first.steps):
        return replace(draft, parts=(second, first))
    sought = {token for number in failed & set(range(1, len(first.steps) + 1)) for token in _tokens(first, number)}
    taken = draft.parents[0].taken | draft.parents[1].taken
    try:
        drawn = Draw(rng, taken)
        other = {word: drawn.word() for word in sorted(sought & set(WORDS) & _all_tokens(second))}
    except LookupError:
        return None
    return replace(draft, parts=(first, _renamed(second, other))) if other else None


def _numbered(outline: Outline) -> list[tuple[int, str]]:
    return [(int(name.split("-")[0]), name) for name, _ in outline.checks]


def _tokens(outline: Outline, number: int) -> set[str]:
    return set(TOKEN.findall(outline.steps[number - 1].command))


def _all_tokens(outline: Outline) -> set[str]:
    texts = [outline.instruction, outline.solution, *outline.files.values()]
    return {token for text in texts for token in TOKEN.findall(text)}


def _renamed(outline: Outline, other: Mapping[str, str]) -> Outline:
    def renamed(text: str) -> str:
        return TOKEN.sub(lambda match: other.get(match[0], match[0]), text)

    steps = tuple(
        replace(
            step,
            wording=renamed(step.wording),
            command=renamed(step.command),
            checks=tuple(Check(check.name, (check.call[0], *map(renamed, check.call[1:]))) for check in step.checks),
        )
        for step in outline.steps
    )
    return Outline(steps, {path: renamed(text) for path, text in outline.files.items()})


def _extended(
    family: str,
    source: Source,
    step: Step,
    *,
    before: tuple[Step, ...] | None = None,
    files: Mapping[str, str] | None = None,
) -> Draft:
    steps = source.outline.steps if before is None else before
    given = {**source.outline.files, **(files or {})}
    return Draft(
        family, f"{family}-{step.label}", (source,), (Outline(guarded((*steps, step), given), given),), source.turns + 1
    )


def _shuffled(artifacts: Mapping[str, Lines], rng: random.Random) -> list[tuple[str, Lines]]:
    return rng.sample(sorted(artifacts.items()), len(artifacts))
