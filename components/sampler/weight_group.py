"""The process group through which weights travel: the trainer is rank 0, every rank of every sampler one more.

Invariant: the keys of the rendezvous are those of SGLang's `init_custom_process_group`, so that a stock SGLang joins.
Nothing is registered with `torch.distributed`: the group stands beside Megatron's and can be dropped after any error.
Every operation ends within the group's timeout; those that block run in threads that no exit waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, Store, TCPStore

from components.errors import FaultCause, InfraFault
from components.sampler.protocol import GroupAddress

# First device of each backend in torch's own table, part of the keys.
_DEVICE = {"gloo": "cpu", "nccl": "cuda"}


def open_store(host: str, world_size: int, timeout_s: float) -> TCPStore:
    """The meeting point, in the trainer's process at a free port (`.port`).

    Raises:
        InfraFault: TRAINER; the address cannot be listened on.
    """
    try:
        return TCPStore(host, 0, world_size, True, timedelta(seconds=timeout_s), wait_for_workers=False)
    except RuntimeError as error:
        raise InfraFault(FaultCause.TRAINER, f"weight group: cannot listen on {host}: {_first_line(error)}") from error


class WeightGroup:
    """A joined group. Every member's constructor returns when all have joined.

    Args:
        store: the trainer's own, which it opened; a sampler's connects to the address.

    Raises:
        InfraFault: SAMPLER; the others did not join within the timeout.
    """

    def __init__(self, address: GroupAddress, rank: int, *, timeout_s: float, store: Store | None = None) -> None:
        self._name = address.name
        self._device = _DEVICE[address.backend]
        timeout = timedelta(seconds=timeout_s)
        try:
            if store is None:
                store = TCPStore(address.host, address.port, address.world_size, False, timeout)
            inner = PrefixStore(f"{address.name}/", PrefixStore(address.name, store))
            keys = PrefixStore(f"{_DEVICE[address.backend]}/", inner)
            self._group = _backend(address.backend, keys, rank, address.world_size, timeout)
        except RuntimeError as error:
            raise self._fault("cannot be joined", error) from error

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Sends the tensors from rank 0, or fills them elsewhere, one collective each, in order.

        Rank 0's may be anywhere and are taken to where the backend sends from; those to be filled must be there.

        Raises:
            InfraFault: SAMPLER; a member left or the timeout passed. The tensors are then worthless.
        """
        options = BroadcastOptions()
        options.rootRank = 0
        try:
            placed = [tensor.to(self._device) for tensor in tensors]
            for work in [self._group.broadcast([tensor], options) for tensor in placed]:
                work.wait()
        except RuntimeError as error:
            raise self._fault("broke", error) from error

    def close(self) -> None:
        """Leaves the group; members that wait for this one are told by closed connections."""
        self._group.abort()
        self._group.shutdown()

    def _fault(self, what: str, error: RuntimeError) -> InfraFault:
        return InfraFault(FaultCause.SAMPLER, f"weight group {self._name} {what}: {_first_line(error)}")


def _backend(kind: str, store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    if kind == "gloo":
        from torch.distributed import ProcessGroupGloo

        return ProcessGroupGloo(store, rank, size, timeout)
    from torch.distributed import ProcessGroupNCCL  # absent from a torch without CUDA

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def empty(dtype: str, shape: Sequence[int]) -> Tensor:
    """A tensor to receive into; ValueError for what is no dtype or shape."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype")
    return torch.empty(list(shape), dtype=kind)
