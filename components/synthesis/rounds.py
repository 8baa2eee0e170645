"""Rounds of recursive synthesis: what one accepts is what the next one makes longer tasks of.

Invariants: a run is a pure function of pool, configuration, seed and what the gates said; what they said of a draft is
journalled by its content, so that a run that was killed repeats at most what was in flight, and goes on to the very
tasks that it would have made; a task in the grown pool was accepted by the gates, and its lineage is complete.

A round proposes in waves: all drafts of a wave are planned before one of them is run, so that no order of boxes decides
what is proposed next.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from components.config import PoolConfig, SandboxConfig, SynthesisConfig
from components.curation import FAULT, GateResult, Rejection, audit, with_assertions
from components.curation.quality.answer import BadAnswer
from components.errors import TaskError, no_space
from components.pool import Pool, Task, directory_digest, load_task, write_index
from components.records import TaskRef
from components.sandbox import SandboxBackend
from components.synthesis.draft import Draft
from components.synthesis.model import FAMILY, OPERATIONS, Proposer, Wish, Written
from components.synthesis.operators import OPERATORS, repair
from components.synthesis.probe import Seen, look
from components.synthesis.report import Fate, RoundReport
from components.synthesis.run import STATE, tell
from components.synthesis.source import Source, read_source

log = logging.getLogger(__name__)

JOURNAL, SEEN = "gates.jsonl", "seen"
REPAIRABLE = frozenset({Rejection.ORACLE_FAILS, Rejection.FLAKY})
"""Verdicts of a solution that did not make what is asserted: what they say may help."""
GUARDS, SHORT, UNANSWERED = "undeclared_guards", "too_little_more", "no_proposal"
UNUSABLE = "unusable"
"""Why a task that the gates admit is not accepted: it says of more assertions than it declares that they hold
untouched; it is not longer than its parent by as much as is asked; a model gave no proposal that can be read."""


@dataclass(frozen=True, slots=True)
class World:
    """What drafts are made and run in."""

    backend: SandboxBackend
    sandbox: SandboxConfig
    pool: PoolConfig
    concurrency: int
    proposer: Proposer | None = None
    """A model that is asked for drafts, too."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A task with the assertion lists that were measured, and what the gates said."""

    ref: TaskRef
    result: GateResult


@dataclass
class Proposal:
    """A draft under its name, and what has become of it: where it was written last, and why it was not accepted."""

    task_id: str
    round: int
    draft: Draft | Wish | Written
    path: Path = Path()
    ref: TaskRef = field(default_factory=lambda: TaskRef("", "", "", ""))
    repairs: int = 0
    reason: str = ""
    detail: str = ""
    """Why it is not accepted; empty while nothing speaks against it."""

    @property
    def turns(self) -> int:
        assert not isinstance(self.draft, Wish), "an answer has taken its place"
        return self.draft.turns

    @property
    def assertions(self) -> int:
        """As they were measured."""
        return len(self.ref.fail_to_pass)

    @property
    def words(self) -> int:
        assert not isinstance(self.draft, Wish), "an answer has taken its place"
        return self.draft.words

    def fate(self) -> Fate:
        draft = self.draft
        parents = tuple(parent.ref.task_id for parent in draft.parents)
        return Fate(self.task_id, draft.family, draft.operator, parents, self.repairs, self.reason, self.detail)


@dataclass
class Grown:
    """The tasks of a run so far. `last` are those of the round before; `made` those of all rounds."""

    roots: Sequence[Source]
    last: Sequence[Source]
    made: list[TaskRef] = field(default_factory=list)
    children: Counter[str] = field(default_factory=Counter)
    contents: set[tuple[str, ...]] = field(default_factory=set)


async def synthesize(
    pool: Pool,
    folder: Path,
    world: World,
    config: SynthesisConfig,
    *,
    seed: int,
    on_round: Callable[[RoundReport], None] | None = None,
) -> list[RoundReport]:
    """Grows `pool` by rounds; gives one report a round. The grown tasks, and no other, are the pool in `folder`.

    Args:
        folder: as `open_run` opened it.

    Raises:
        TaskError: nothing in the pool can be gone on from, or a round accepted nothing.
        InfraFault: some tasks have no verdict. ServiceError: the model is away. The same call goes on from there.
    """
    scratch = folder / STATE
    roots = await _roots(pool, scratch, world)
    grown = Grown(roots, roots)
    reports = []
    for number in range(1, config.rounds + 1):
        proposals = await _round(number, grown, scratch, world, config, seed)
        accepted = [proposal for proposal in proposals if not proposal.reason]
        report = RoundReport.of(number, [each.fate() for each in proposals], grown.last, accepted)
        if not accepted:
            raise TaskError(str(folder), [f"round {number} accepted no task", *report.reasons()])
        refs = [_keep(proposal, folder) for proposal in accepted]
        _remove_others(number, refs, folder)
        grown.made += refs
        write_index(folder, grown.made)
        pairs = zip(accepted, refs, strict=True)
        parents = [await _parent(proposal, ref, folder, world) for proposal, ref in pairs]
        grown.last = [parent for parent in parents if parent is not None]
        if not grown.last and number < config.rounds:
            raise TaskError(str(folder), [f"no task of round {number} can be gone on from"])
        shutil.rmtree(scratch / f"round-{number}")
        reports.append(report)
        tell(folder, reports)
        log.info("%s", report)
        if on_round is not None:
            on_round(report)
    return reports


async def _roots(pool: Pool, scratch: Path, world: World) -> list[Source]:
    """The accepted tasks of the pool that the operators can read. Those that the gates never saw are run first."""
    refs = {ref.task_id: ref for ref in pool.refs}
    if not all(ref.fail_to_pass for ref in pool.refs):
        found = await _gates(pool, scratch, world)
        measured = {task: each for task, each in found.items() if isinstance(each, Measured)}
        refs = {task: each.ref for task, each in measured.items() if each.result.rejection is None}
    room = asyncio.Semaphore(world.concurrency)

    async def read(ref: TaskRef) -> Source | None:
        async with room:
            try:
                return await _read(pool.folder / ref.task_id, ref, world, scratch)
            except TaskError as error:
                log.warning("%s", error)
                return None

    sources = [source for source in await asyncio.gather(*map(read, refs.values())) if source is not None]
    if not sources:
        raise TaskError(str(pool.folder), ["no task can be gone on from"])
    return sources


async def _round(
    number: int, grown: Grown, scratch: Path, world: World, config: SynthesisConfig, seed: int
) -> list[Proposal]:
    """All proposals of a round, with what became of them."""
    proposals: list[Proposal] = []
    for wave in range(config.waves):
        rng = random.Random(f"{seed}/{number}/{wave}")
        planned = _plan(number, proposals, grown, config, rng, asks=world.proposer is not None)
        if not planned:
            break
        if world.proposer is not None:
            await _fulfil(planned, grown, world.proposer, world.concurrency, config)
        place = scratch / f"round-{number}" / f"wave-{wave}"
        await _validate([each for each in planned if not each.reason], place, world, config, rng)
        proposals += planned
        for proposal in planned:
            if proposal.reason:
                grown.children.subtract(parent.ref.task_id for parent in proposal.draft.parents)
    return proposals


def _plan(
    round_: int, before: Sequence[Proposal], grown: Grown, config: SynthesisConfig, rng: random.Random, *, asks: bool
) -> list[Proposal]:
    """Drafts for what the round still lacks, within the caps. Every parent comes once before one comes again."""
    accepted = [proposal.draft for proposal in before if not proposal.reason]
    categories = Counter(draft.first.ref.category for draft in accepted)
    families = Counter(draft.family for draft in accepted)
    planned: list[Proposal] = []
    for _ in range(config.per_parent):
        for parent in rng.sample(grown.last, len(grown.last)):
            if len(planned) == config.tasks - len(accepted):
                return planned
            full = grown.children[parent.ref.task_id] >= config.per_parent
            if full or categories[parent.ref.category] >= config.per_category:
                continue
            draft = _draft(parent, grown, families, config, rng, asks=asks)
            if draft is None:
                continue
            grown.contents.add(draft.content)
            grown.children.update(each.ref.task_id for each in draft.parents)
            categories[parent.ref.category] += 1
            families[draft.family] += 1
            task_id = f"grown-{round_}-{len(before) + len(planned):05d}"
            planned.append(Proposal(task_id, round_, draft))
    return planned


def _draft(
    parent: Source,
    grown: Grown,
    families: Mapping[str, int],
    config: SynthesisConfig,
    rng: random.Random,
    *,
    asks: bool,
) -> Draft | Wish | None:
    """What the first operator makes of a parent that is under its cap and finds something that is allowed."""
    open_roots = [each for each in grown.roots if grown.children[each.ref.task_id] < config.per_parent]
    names = [*sorted(OPERATORS), FAMILY] if asks else sorted(OPERATORS)
    for name in rng.sample(names, len(names)):
        if families.get(name, 0) >= config.per_family:
            continue
        if name == FAMILY:
            return Wish(parent, rng.choice(sorted(OPERATIONS)), rng.getrandbits(32))
        others = [each for each in open_roots if parent.turns + each.turns <= config.max_turns]
        draft = OPERATORS[name](parent, others, rng)
        if draft is not None and _is_allowed(draft, grown, config):
            return draft
    return None


def _is_allowed(draft: Draft | Written, grown: Grown, config: SynthesisConfig) -> bool:
    """What can be said of a draft before it is run."""
    if draft.turns > config.max_turns or draft.words > config.max_instruction_words:
        return False
    return draft.turns >= draft.first.turns + config.min_turns and draft.content not in grown.contents


async def _fulfil(
    planned: Sequence[Proposal], grown: Grown, proposer: Proposer, concurrency: int, config: SynthesisConfig
) -> None:
    """Has the model write what it is to propose. Answers are judged in the order of the plan, not of their arrival."""
    room = asyncio.Semaphore(concurrency)

    async def ask(wish: Wish) -> Written | str:
        async with room:
            try:
                return await proposer.propose(wish)
            except BadAnswer as error:
                return str(error)

    wishes = [(proposal, proposal.draft) for proposal in planned if isinstance(proposal.draft, Wish)]
    said = await asyncio.gather(*(ask(wish) for _, wish in wishes))
    for (proposal, _), answer in zip(wishes, said, strict=True):
        if isinstance(answer, str):
            proposal.reason, proposal.detail = UNANSWERED, answer
            continue
        proposal.draft = answer
        if not _is_allowed(answer, grown, config):
            told = f"{answer.turns} turns after {answer.first.turns}, {answer.words} words, or proposed before"
            proposal.reason, proposal.detail = SHORT, told
        grown.contents.add(answer.content)


async def _validate(
    planned: Sequence[Proposal], place: Path, world: World, config: SynthesisConfig, rng: random.Random
) -> None:
    """Runs drafts through the gates, and those that can be repaired again, each in fresh boxes."""
    waiting = list(planned)
    for attempt in range(config.repairs + 1):
        folder = place / f"attempt-{attempt}"
        refs = [ref for proposal in waiting if (ref := _written(proposal, folder)) is not None]
        sound = load_task(waiting[0].draft.first.path) if waiting else None
        found = await _gates(write_index(folder, refs), place.parents[1], world, sound) if refs else {}
        for proposal in waiting:
            if proposal.reason != UNUSABLE:
                _judge(proposal, found[proposal.task_id], config)
        if attempt == config.repairs:
            return
        waiting = [proposal for proposal in waiting if await _mend(proposal, world, rng)]


def _written(proposal: Proposal, folder: Path) -> TaskRef | None:
    """Writes a draft, and reads it as any task is read; None, with the reason told, where it is none."""
    assert not isinstance(proposal.draft, Wish), "an answer has taken its place"
    proposal.path = folder / proposal.task_id
    try:
        proposal.draft.write(proposal.path, round_=proposal.round)
        ref = load_task(proposal.path).ref
    except (TaskError, OSError, ValueError) as error:
        if no_space(error) is not None:
            raise
        proposal.reason = UNUSABLE
        proposal.detail = "; ".join(error.problems) if isinstance(error, TaskError) else str(error)
        return None
    proposal.reason = ""
    return ref


async def _mend(proposal: Proposal, world: World, rng: random.Random) -> bool:
    """Whether a rejected proposal has another draft now."""
    draft: Draft | Written | None = None
    told = proposal.reason not in ("", FAULT)
    if isinstance(proposal.draft, Written) and told and world.proposer is not None:
        try:
            draft = await world.proposer.repair(proposal.draft, f"{proposal.reason}: {proposal.detail}")
        except BadAnswer as error:
            log.warning("%s is not repaired: %s", proposal.task_id, error)
    elif isinstance(proposal.draft, Draft) and proposal.reason in REPAIRABLE:
        draft = repair(proposal.draft, proposal.detail, rng)
    if draft is None:
        return False
    proposal.draft, proposal.repairs = draft, proposal.repairs + 1
    return True


def _judge(proposal: Proposal, found: Measured | str, config: SynthesisConfig) -> None:
    """What the gates say, and what was asked of the draft beyond them."""
    draft = proposal.draft
    assert not isinstance(draft, Wish), "an answer has taken its place"
    if isinstance(found, str):
        proposal.reason, proposal.detail = FAULT, found
        return
    result = found.result
    proposal.reason, proposal.detail, proposal.ref = "", "", found.ref
    if result.rejection is not None:
        proposal.reason, proposal.detail = str(result.rejection), result.detail
        return
    idle = sorted(set(result.pass_to_pass) - set(draft.declared))
    more = len(result.fail_to_pass) - draft.first.assertions
    if idle:
        proposal.reason, proposal.detail = GUARDS, f"hold untouched: {', '.join(idle)}"
    elif more < config.min_assertions:
        proposal.reason, proposal.detail = SHORT, f"{more} assertions more than its parent, not {config.min_assertions}"


async def _gates(pool: Pool, scratch: Path, world: World, sound: Task | None = None) -> dict[str, Measured | str]:
    """What the gates say of every task of a pool, by its id, from the journal where they have said it; of one that
    keeps them from saying anything, by which fault.

    Raises:
        InfraFault: as `audit`.
    """
    verdict = await audit(
        pool,
        world.backend,
        config=world.pool,
        sandbox=world.sandbox,
        journal=scratch / JOURNAL,
        concurrency=world.concurrency,
        sound=sound,
    )
    refs = {ref.task_id: ref for ref in pool.refs}
    measured = {task: Measured(with_assertions(refs[task], result), result) for task, result in verdict.results.items()}
    return {**measured, **verdict.faults}


def _keep(proposal: Proposal, folder: Path) -> TaskRef:
    """Puts an accepted task into the grown pool."""
    target = folder / proposal.task_id
    if not target.exists() or directory_digest(target) != proposal.ref.digest:
        arriving = folder / f".{proposal.task_id}.arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        shutil.copytree(proposal.path, arriving, symlinks=True)
        shutil.rmtree(target, ignore_errors=True)
        arriving.rename(target)
    return replace(proposal.ref, pool_id=folder.name)


def _remove_others(number: int, kept: Sequence[TaskRef], folder: Path) -> None:
    """Removes tasks of a round that an attempt before had accepted, where boxes failed then and do not now."""
    names = {ref.task_id for ref in kept}
    for path in folder.glob(f"grown-{number}-*"):
        if path.name not in names:
            shutil.rmtree(path)


async def _parent(proposal: Proposal, ref: TaskRef, folder: Path, world: World) -> Source | None:
    """An accepted task as the next round goes on from it; None where nothing can be added to it."""
    path, first = folder / proposal.task_id, proposal.draft.first
    try:
        if isinstance(proposal.draft, Draft):
            left = {name: lines for name, lines in first.artifacts.items() if name not in first.own}
            return read_source(path, ref, Seen(left, first.taken) if first.extends else None)
        return await _read(path, ref, world, folder / STATE)
    except TaskError as error:
        log.warning("no round goes on from it: %s", error)
        return None


async def _read(path: Path, ref: TaskRef, world: World, scratch: Path) -> Source:
    """A task of any dialect. Of another than ours, what its solution leaves is seen by running it.

    Raises:
        TaskError: nothing can be added to it.
    """
    try:
        return read_source(path, ref)
    except TaskError as error:
        log.debug("%s", error)
    return read_source(path, ref, await look(load_task(path), world.backend, world.sandbox, scratch / SEEN))
