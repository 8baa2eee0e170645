"""Batches as files: what a step learned from, exactly.

Invariant: a batch folder is whole or absent, and never changes once it is there (temporary folder, fsync, rename). All
numbers that a step logs can be computed again from it.

Layout: `arrays.safetensors` holds the arrays of samples and turns; `batch.json` the rest. A turn stores only the ids
that its stream does not share with the turn before, so that a trial of T turns takes the space of its last one. Routing
is stored once, with the samples; the turns of a loaded batch have none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from components.errors import FaultCause, InfraFault, StopReason, StoreError
from components.records import AssertionOutcome, Reward, Sample, Sampling, TaskRef, Trial, Turn, VerifierReport
from components.rollout.ledger import Ledger

FORMAT = 4
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class SpooledBatch:
    """A batch read back. `rewards` has one entry a trial; samples name their trial."""

    trials: tuple[Trial, ...]
    samples: tuple[Sample, ...]
    rewards: tuple[Reward, ...]
    ledger: Ledger


def save_batch(
    folder: Path, trials: Sequence[Trial], samples: Sequence[Sample], rewards: Sequence[Reward], ledger: Ledger
) -> None:
    """Commits a batch as `folder`.

    Raises:
        StoreError: the folder exists already, or cannot be written.
        RecordError: a launched trial has no outcome in the ledger.
    """
    ledger.check()
    if folder.exists():
        raise StoreError(f"batch {folder} is committed already and never changes")
    arrays: Arrays = {}
    document = {
        "format": FORMAT,
        "step": ledger.step,
        "trials": [_pack_trial(f"t{index}", trial, arrays) for index, trial in enumerate(trials)],
        "samples": [_pack_sample(f"s{index}", sample, arrays) for index, sample in enumerate(samples)],
        "rewards": [asdict(reward) for _, reward in zip(trials, rewards, strict=True)],
        "ledger": ledger.records(),
    }
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        _write(scratch / "arrays.safetensors", save(arrays))
        _write(scratch / "batch.json", json.dumps(document, separators=(",", ":")).encode())
        _sync(scratch)
        scratch.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise StoreError(f"batch {folder} cannot be written: {error}") from error


def load_batch(folder: Path, only: Collection[str] | None = None) -> SpooledBatch:
    """Reads a committed batch; of its trials all, or `only` those with these ids, whose arrays alone are read.

    Raises:
        StoreError: there is none, or it is damaged.
    """
    try:
        document = json.loads((folder / "batch.json").read_bytes())
        if document["format"] != FORMAT:
            raise StoreError(f"batch {folder} has format {document['format']}, this code reads {FORMAT}")
        trials = _wanted("t", document["trials"], only)
        samples = _wanted("s", document["samples"], only)
        rewards = dict(zip(_wanted("t", document["trials"], None), document["rewards"], strict=True))
        arrays = _arrays(folder / "arrays.safetensors", None if only is None else {*trials, *samples})
        return SpooledBatch(
            tuple(_unpack_trial(key, item, arrays) for key, item in trials.items()),
            tuple(_unpack_sample(key, item, arrays) for key, item in samples.items()),
            tuple(Reward(**rewards[key]) for key in trials),
            Ledger.from_records(document["step"], document["ledger"]),
        )
    except StoreError:
        raise
    except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
        raise StoreError(f"batch {folder} cannot be read: {error}") from error


def _wanted(letter: str, items: Sequence[Any], only: Collection[str] | None) -> dict[str, Any]:
    """Trials or samples by the key that their arrays go by."""
    named = {f"{letter}{index}": item for index, item in enumerate(items)}
    return {key: item for key, item in named.items() if only is None or item["trial_id"] in only}


def _arrays(path: Path, wanted: Collection[str] | None) -> Arrays:
    if wanted is None:
        return load_file(path)
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name.partition(".")[0] in wanted}  # noqa: SIM118


def _pack_sample(key: str, sample: Sample, arrays: Arrays) -> dict[str, Any]:
    arrays[f"{key}.tokens"] = np.ascontiguousarray(sample.tokens)
    arrays[f"{key}.mask"] = np.ascontiguousarray(sample.loss_mask)
    arrays[f"{key}.logprobs"] = np.ascontiguousarray(sample.logprobs)
    if sample.routing is not None:
        arrays[f"{key}.routing"] = np.ascontiguousarray(sample.routing)
    return {
        "trial_id": sample.trial_id,
        "chunk": sample.chunk,
        "boundaries": dict(sample.boundaries),
        "weight_version": sample.weight_version,
        "routing_checksum": sample.routing_checksum,
    }


def _unpack_sample(key: str, item: Mapping[str, Any], arrays: Arrays) -> Sample:
    return Sample(
        arrays[f"{key}.tokens"],
        arrays[f"{key}.mask"],
        arrays[f"{key}.logprobs"],
        arrays.get(f"{key}.routing"),
        **item,
    )


def _pack_trial(key: str, trial: Trial, arrays: Arrays) -> dict[str, Any]:
    turns, ids, logprobs = _pack_turns(trial.turns)
    arrays[f"{key}.ids"] = ids
    arrays[f"{key}.logprobs"] = logprobs
    report = trial.report
    return {
        "trial_id": trial.trial_id,
        "task": asdict(trial.task),
        "turns": turns,
        "stop": trial.stop,
        "report": None
        if report is None
        else {
            "assertions": dict(report.assertions),
            "outcome": report.outcome,
            "source": report.source,
            "parse_cause": report.parse_cause,
            "number": report.number,
        },
        "fault": None if trial.fault is None else {"cause": trial.fault.cause, "detail": trial.fault.detail},
        "timings_s": dict(trial.timings_s),
        "facts": dict(trial.facts),
    }


def _unpack_trial(key: str, item: Mapping[str, Any], arrays: Arrays) -> Trial:
    report, fault = item["report"], item["fault"]
    return Trial(
        trial_id=item["trial_id"],
        task=_unpack_task(item["task"]),
        turns=_unpack_turns(item["turns"], arrays[f"{key}.ids"], arrays[f"{key}.logprobs"]),
        stop=None if item["stop"] is None else StopReason(item["stop"]),
        report=None
        if report is None
        else VerifierReport(
            {name: AssertionOutcome(outcome) for name, outcome in report["assertions"].items()},
            report["outcome"],
            report["source"],
            report["parse_cause"],
            report.get("number"),  # batches of before have none
        ),
        fault=None if fault is None else InfraFault(FaultCause(fault["cause"]), fault["detail"]),
        timings_s=item["timings_s"],
        facts=item["facts"],
    )


def _unpack_task(item: Mapping[str, Any]) -> TaskRef:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in item.items()}
    return TaskRef(**fields)


def _pack_turns(turns: Sequence[Turn]) -> tuple[list[dict[str, Any]], NDArray[np.int32], NDArray[np.float32]]:
    described, ids, logprobs = [], [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    before = np.empty(0, np.int32)
    for turn in turns:
        stream = np.concatenate([turn.prompt_ids, turn.completion_ids]).astype(np.int32)
        shared = _shared(before, stream)
        ids.append(stream[shared:])
        logprobs.append(np.asarray(turn.logprobs, np.float32))
        described.append(
            {
                "shared": shared,
                "prompt": len(turn.prompt_ids),
                "answer": len(turn.completion_ids),
                "finish_reason": turn.finish_reason,
                "weight_version": turn.weight_version,
                "sampling": asdict(turn.sampling),
                "opens": turn.opens,
            }
        )
        before = stream
    return described, np.concatenate(ids), np.concatenate(logprobs)


def _unpack_turns(
    described: Sequence[Mapping[str, Any]], ids: NDArray[np.int32], logprobs: NDArray[np.float32]
) -> tuple[Turn, ...]:
    turns, before = [], np.empty(0, np.int32)
    id_at = logprob_at = 0
    for item in described:
        prompt, answer, shared = item["prompt"], item["answer"], item["shared"]
        fresh = prompt + answer - shared
        stream = np.concatenate([before[:shared], ids[id_at : id_at + fresh]])
        id_at += fresh
        turns.append(
            Turn(
                stream[:prompt],
                stream[prompt:],
                logprobs[logprob_at : logprob_at + answer],
                None,
                item["weight_version"],
                item["finish_reason"],
                Sampling(**item["sampling"]),
                item["opens"],
            )
        )
        logprob_at += answer
        before = stream
    return tuple(turns)


def _shared(before: NDArray[np.int32], after: NDArray[np.int32]) -> int:
    """Length of the common prefix of two streams."""
    length = min(len(before), len(after))
    differs = np.flatnonzero(before[:length] != after[:length])
    return int(differs[0]) if len(differs) else length


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
