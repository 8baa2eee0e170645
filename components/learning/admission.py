"""Whether the streams of a trial may be trained on: the last look at what was recorded of it.

Invariants: a stream enters a batch only when every trained token is one that was sampled there (Eq 11), and when its
routing is row by row what was captured and what a router of this model can have chosen. What fails ends its trial, as a
fault with its cause, and no other; more of them than `rollout.max_rejected_share` allows end the leg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from components.config import ModelConfig
from components.errors import ChecksumError, DriftError, InfraFault, RecordError
from components.outcomes import Raised, fault_of
from components.records import Sample, Trial
from components.routing import checksum, validate
from components.tito import DriftReport, Tokenizer, audit


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """The streams of one trial, and what the auditor found in them."""

    samples: tuple[Sample, ...]
    drift: DriftReport


def admit(trial: Trial, chunks: Sequence[Sample], tokenizer: Tokenizer, model: ModelConfig) -> Admitted:
    """Audits the streams of a trial.

    Args:
        chunks: as `components.tito.stitch` made them of the trial's turns, or read back from disk.

    Raises:
        DriftError: a loss position holds what was not sampled there, or a turn is missing or trained on twice.
        RecordError: routing is absent, or none that this model can have produced; a ChecksumError where it is not what
            was captured.
    """
    for chunk in chunks:
        _check_routing(chunk, model)
    report = audit(trial.turns, chunks, tokenizer)
    if not report.clean:
        raise DriftError(f"trial {trial.trial_id}: what is trained is not what was sampled: {report}")
    return Admitted(tuple(chunks), report)


def damaged(samples: Sequence[Sample], model: ModelConfig) -> dict[str, InfraFault]:
    """Of streams that were admitted and have been stored since: trials that have lost their routing, each with why."""
    found: dict[str, InfraFault] = {}
    for sample in samples:
        try:
            _check_routing(sample, model)
        except RecordError as error:
            fault = fault_of(Raised(error))
            assert fault is not None, "a broken record is a fault"
            found.setdefault(sample.trial_id, fault)
    return found


def _check_routing(sample: Sample, model: ModelConfig) -> None:
    name = f"sample {sample.trial_id}/{sample.chunk}"
    if sample.routing is None or sample.routing_checksum is None:
        raise RecordError(f"{name} has no routing, or none whose capture has a checksum")
    if (found := checksum(sample.routing)) != sample.routing_checksum:
        raise ChecksumError(f"{name}: its routing has checksum {found:08x}, captured was {sample.routing_checksum:08x}")
    form = (model.num_hidden_layers, model.num_experts_per_tok)
    if sample.routing.shape[1:] != form:
        raise RecordError(f"{name}: routing of {sample.routing.shape[1:]} layers and experts, the model has {form}")
    try:
        validate(sample.routing, model.num_experts)
    except RecordError as error:
        raise RecordError(f"{name}: {error}") from error
