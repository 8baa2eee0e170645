"""Reading SGLang's answers: checks that every part is there and fits, then turns it into numpy. Pure.

Invariant: what passes is whole (see `protocol.Generation`). SGLang pads nothing here, and neither do we: a missing row
or a duplicate expert is a fault with its cause, never a guess.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.errors import FaultCause, InfraFault
from components.records import Routing
from components.sampler.geometry import ModelGeometry
from components.sampler.protocol import Generation


def read_generation(
    body: Any, *, prompt_tokens: int, routing_start: int | None, geometry: ModelGeometry, accept_abort: bool
) -> Generation:
    """Reads one element of a `/generate` response.

    Raises:
        InfraFault: SAMPLER for an abort that nobody asked for or a malformed answer; CAPTURE_MISSING for routing that
            is absent or not whole.
    """
    try:
        meta = body["meta_info"]
        reason = meta["finish_reason"]["type"]
        if reason == "abort" and not accept_abort:
            raise _fault(f"request was aborted: {meta['finish_reason'].get('message')}")
        output = np.asarray(body["output_ids"], dtype=np.int64)
        pairs = meta.get("output_token_logprobs") or []
        logprobs = np.array([pair[0] for pair in pairs], dtype=np.float32)
        reported = np.array([pair[1] for pair in pairs], dtype=np.int64)
        version = _version(meta)
        cached = int(meta.get("cached_tokens") or 0)
        encoded = meta.get("routed_experts")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _fault(f"malformed answer ({type(error).__name__}: {error})") from error
    if not np.array_equal(output, reported):
        raise _fault(f"{len(output)} output ids and {len(reported)} log-probs disagree")
    if reason != "abort" and not len(output):
        raise _fault("answer holds no token")
    if len(output) and (output.min() < 0 or output.max() >= geometry.vocab_size):
        raise _fault("output ids outside the vocabulary")
    if not np.isfinite(logprobs).all():
        raise _fault("log-probs that are not finite")
    # A request that was aborted while it waited has no rows, whatever SGLang version.
    wanted = routing_start is not None and (reason != "abort" or encoded is not None)
    rows = prompt_tokens + len(output) - 1 - (routing_start or 0)
    return Generation(
        output_ids=output.astype(np.int32),
        logprobs=logprobs,
        routing=decode_routing(encoded, rows, geometry) if wanted else None,
        routing_start=routing_start or 0,
        finish_reason=reason,
        weight_version=version,
        cached_tokens=cached,
    )


def decode_routing(encoded: Any, rows: int, geometry: ModelGeometry) -> Routing:
    """Base64 of int32 [rows, L, K] to the smallest unsigned type.

    Raises:
        InfraFault: CAPTURE_MISSING; absent, of another length, out of range, or an expert twice in a row.
    """
    layers, topk = geometry.num_layers, geometry.experts_per_token
    if not isinstance(encoded, str):
        raise InfraFault(FaultCause.CAPTURE_MISSING, "answer holds no routed experts; was capture enabled?")
    try:
        flat = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<i4")
    except (binascii.Error, ValueError) as error:
        raise InfraFault(FaultCause.CAPTURE_MISSING, f"routed experts are unreadable: {error}") from error
    if len(flat) != rows * layers * topk:
        detail = f"routed experts hold {len(flat)} ids, {rows} rows x {layers} layers x {topk} are due"
        raise InfraFault(FaultCause.CAPTURE_MISSING, detail)
    experts: NDArray[np.int32] = flat.reshape(rows, layers, topk)
    if rows and (experts.min() < 0 or experts.max() >= geometry.num_experts):
        raise InfraFault(FaultCause.CAPTURE_MISSING, f"routed experts outside [0, {geometry.num_experts})")
    if _repeats(experts):
        raise InfraFault(FaultCause.CAPTURE_MISSING, "an expert is twice in one row of routed experts")
    return experts.astype(np.uint8) if geometry.num_experts <= 256 else experts.astype(np.uint16)


def _repeats(experts: NDArray[np.int32]) -> bool:
    ordered = np.sort(experts, axis=-1)
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _version(meta: Mapping[str, Any]) -> int:
    """The one version of the weights that drew the answer; SGLang's initial "default" is version 0.

    0.5.23 reports spans of versions, 0.5.12 only the version at the end.
    """
    spans = meta.get("weight_versions") or []
    versions = {span["version"] for span in spans} | {meta["weight_version"]}
    if len(versions) > 1:
        raise _fault(f"one answer was drawn under several weight versions: {sorted(versions)}")
    return parse_version(versions.pop())


def parse_version(text: Any) -> int:
    """A weight version as a number.

    Raises:
        InfraFault: SAMPLER; it is not a number, so the server was not ours to update.
    """
    if text == "default":
        return 0
    try:
        return int(text)
    except (TypeError, ValueError) as error:
        raise _fault(f"weight version {text!r} is not a number") from error


def _fault(detail: str) -> InfraFault:
    return InfraFault(FaultCause.SAMPLER, detail)
