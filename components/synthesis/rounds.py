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
from components.curation import GateResult, Rejection, audit, with_assertions
from components.errors import FaultCause, InfraFault, TaskError
from components.pool import Pool, directory_digest, index_folder, load_task, write_index
from components.records import TaskRef
from components.sandbox import SandboxBackend
from components.synthesis.draft import Draft
from components.synthesis.operators import OPERATORS, repair
from components.synthesis.probe import Seen, look
from components.synthesis.report import Fate, RoundReport
from components.synthesis.run import STATE, tell
from components.synthesis.source import Source, read_source

log = logging.getLogger(__name__)

JOURNAL, SEEN = "gates.jsonl", "seen"
REPAIRABLE = frozenset({Rejection.ORACLE_FAILS, Rejection.FLAKY})
"""Verdicts of a solution that did not make what is asserted: what they say may help."""
GUARDS, SHORT = "undeclared_guards", "too_little_more"
"""Why a task that the gates admit is not accepted: it says of more assertions than it declares that they hold
untouched; it is not longer than its parent by as much as is asked."""


@dataclass(frozen=True, slots=True)
class World:
    """What drafts are run in."""

    backend: SandboxBackend
    sandbox: SandboxConfig
    pool: PoolConfig
    concurrency: int


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
    draft: Draft
    path: Path = Path()
    ref: TaskRef = field(default_factory=lambda: TaskRef("", "", "", ""))
    repairs: int = 0
    reason: str = ""
    detail: str = ""

    def fate(self) -> Fate:
        draft = self.draft
        parents = tuple(parent.ref.task_id for parent in draft.parents)
        return Fate(self.task_id, draft.family, draft.operator, parents, self.repairs, self.reason, self.detail)


@dataclass
class Grown:
    """The tasks of a run so far. `last` are those of the round before; `made` those of all rounds."""

    roots: Sequence[Source]
    last: Sequence[Source]
    made: list[Source] = field(default_factory=list)
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
        InfraFault: some tasks have no verdict. The same call goes on from there.
    """
    scratch = folder / STATE
    roots = await _roots(pool, scratch, world)
    grown = Grown(roots, roots)
    reports = []
    for number in range(1, config.rounds + 1):
        proposals = await _round(number, grown, scratch, world, config, seed)
        accepted = [_keep(proposal, folder) for proposal in proposals if not proposal.reason]
        report = RoundReport.of(number, [proposal.fate() for proposal in proposals], grown.last, accepted)
        if not accepted:
            raise TaskError(str(folder), [f"round {number} accepted no task", *report.reasons()])
        grown.made += accepted
        grown.last = accepted
        write_index(folder, [source.ref for source in grown.made])
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
        refs = {task: each.ref for task, each in found.items() if each.result.rejection is None}
    room = asyncio.Semaphore(world.concurrency)

    async def read(ref: TaskRef) -> Source | None:
        path = pool.folder / ref.task_id
        try:
            return read_source(path, ref)
        except TaskError as error:  # another dialect: what its solution leaves is seen by running it
            log.debug("%s", error)
        async with room:
            try:
                seen = await look(load_task(path), world.backend, world.sandbox, scratch / SEEN)
                return read_source(path, ref, seen)
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
        planned = _plan(number, proposals, grown, config, rng)
        if not planned:
            break
        await _validate(planned, scratch / f"round-{number}" / f"wave-{wave}", world, config, rng)
        proposals += planned
        for proposal in planned:
            if proposal.reason:
                grown.children.subtract(parent.ref.task_id for parent in proposal.draft.parents)
    return proposals


def _plan(
    round_: int, before: Sequence[Proposal], grown: Grown, config: SynthesisConfig, rng: random.Random
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
            draft = _draft(parent, grown, families, config, rng)
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
    parent: Source, grown: Grown, families: Mapping[str, int], config: SynthesisConfig, rng: random.Random
) -> Draft | None:
    """What the first operator makes of a parent that is under its cap and finds something that is allowed."""
    open_roots = [each for each in grown.roots if grown.children[each.ref.task_id] < config.per_parent]
    for name in rng.sample(sorted(OPERATORS), len(OPERATORS)):
        if families.get(name, 0) >= config.per_family:
            continue
        others = [each for each in open_roots if parent.turns + each.turns <= config.max_turns]
        draft = OPERATORS[name](parent, others, rng)
        if draft is not None and _is_allowed(draft, grown, config):
            return draft
    return None


def _is_allowed(draft: Draft, grown: Grown, config: SynthesisConfig) -> bool:
    """What can be said of a draft before it is run."""
    if draft.turns > config.max_turns or draft.words > config.max_instruction_words:
        return False
    return draft.turns >= draft.first.turns + config.min_turns and draft.content not in grown.contents


async def _validate(
    planned: Sequence[Proposal], place: Path, world: World, config: SynthesisConfig, rng: random.Random
) -> None:
    """Runs drafts through the gates, and those that can be repaired again, each in fresh boxes."""
    waiting = list(planned)
    for attempt in range(config.repairs + 1):
        folder = place / f"attempt-{attempt}"
        for proposal in waiting:
            proposal.path = folder / proposal.task_id
            proposal.draft.write(proposal.path, round_=proposal.round)
        pool = index_folder(folder)
        found = await _gates(pool, place.parents[1], world)
        for proposal in waiting:
            _judge(proposal, found[proposal.task_id], config)
        left = config.repairs - attempt
        waiting = [proposal for proposal in waiting if left and _mend(proposal, rng)]
        if not waiting:
            return


def _mend(proposal: Proposal, rng: random.Random) -> bool:
    """Whether a rejected proposal has another draft now."""
    draft = repair(proposal.draft, proposal.detail, rng) if proposal.reason in REPAIRABLE else None
    if draft is None:
        return False
    proposal.draft, proposal.repairs = draft, proposal.repairs + 1
    return True


def _judge(proposal: Proposal, found: Measured, config: SynthesisConfig) -> None:
    """What the gates say, and what was asked of the draft beyond them."""
    result, draft = found.result, proposal.draft
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


async def _gates(pool: Pool, scratch: Path, world: World) -> dict[str, Measured]:
    """What the gates say of every task of a pool, by its id, from the journal where they have said it."""
    verdict = await audit(
        pool,
        world.backend,
        config=world.pool,
        sandbox=world.sandbox,
        journal=scratch / JOURNAL,
        concurrency=world.concurrency,
    )
    if verdict.faults:
        told = "; ".join(f"{task}: {fault}" for task, fault in list(verdict.faults.items())[:3])
        count = f"{len(verdict.faults)} of {len(pool)}"
        raise InfraFault(FaultCause.SANDBOX, f"{count} tasks have no verdict, a later run asks again: {told}")
    results = [(ref, verdict.results[ref.task_id]) for ref in pool.refs]
    return {ref.task_id: Measured(with_assertions(ref, result), result) for ref, result in results}


def _keep(proposal: Proposal, folder: Path) -> Source:
    """Puts an accepted task into the grown pool."""
    target = folder / proposal.task_id
    if not target.exists() or directory_digest(target) != proposal.ref.digest:
        arriving = folder / f".{proposal.task_id}.arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        shutil.copytree(proposal.path, arriving, symlinks=True)
        shutil.rmtree(target, ignore_errors=True)
        arriving.rename(target)
    first = proposal.draft.first
    left = {path: lines for path, lines in first.artifacts.items() if path not in first.own}
    seen = Seen(left, first.taken) if first.extends else None
    return read_source(target, replace(proposal.ref, pool_id=folder.name), seen)
