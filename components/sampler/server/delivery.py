"""Weights that arrive through process groups, SGLang 0.5.23's sessions: begin, any number of updates, end.

Invariant: what arrives is kept beside the served weights and handed out only as a whole model. A session that was cut
short leaves nothing behind but its groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from components.errors import InfraFault
from components.sampler.blocking import in_thread
from components.sampler.protocol import GroupAddress, TensorSpec
from components.sampler.server.driver import WeightUpdateError
from components.sampler.weight_group import WeightGroup, empty

# SGLang's own groups wait for half an hour, too long for a server that has nothing else to do meanwhile.
_TIMEOUT_S = 300.0


class Delivery:
    """The groups that this server has joined, and the session that is open."""

    def __init__(self) -> None:
        self._groups: dict[str, WeightGroup] = {}
        self._arrived: dict[str, Tensor] | None = None
        self._version: str | None = None

    async def join(self, address: GroupAddress, rank: int) -> None:
        """Joins a group, waiting for the others.

        Raises:
            WeightUpdateError: a group of this name is joined, or the others do not come.
        """
        if address.name in self._groups:
            raise WeightUpdateError(f"weight group {address.name} is joined already")
        try:
            group = await in_thread(lambda: WeightGroup(address, rank, timeout_s=_TIMEOUT_S))
        except InfraFault as error:
            raise WeightUpdateError(error.detail) from error
        self._groups[address.name] = group

    def leave(self, name: str) -> None:
        """Leaves a group; WeightUpdateError when it is not joined."""
        if name not in self._groups:
            raise WeightUpdateError(f"weight group {name} is not joined")
        self._groups.pop(name).close()

    def begin(self) -> None:
        """Opens a session; WeightUpdateError when one is open."""
        if self._arrived is not None:
            raise WeightUpdateError("a weight-update session is already open; call end_weight_update first")
        self._arrived, self._version = {}, None

    async def receive(self, tensors: Sequence[TensorSpec], group: str, version: str | None) -> None:
        """Takes tensors from rank 0 of a group.

        Raises:
            WeightUpdateError: no session is open, the group is not joined, a dtype is unknown, or the group broke.
        """
        session = self._arrived
        if session is None:
            raise WeightUpdateError("weights are taken between begin_weight_update and end_weight_update only")
        if group not in self._groups:
            raise WeightUpdateError(f"weight group {group} is not joined")
        try:
            received = {tensor.name: empty(tensor.dtype, tensor.shape) for tensor in tensors}
            joined = self._groups[group]
            await in_thread(lambda: joined.broadcast(list(received.values())))
        except (InfraFault, ValueError) as error:
            raise WeightUpdateError(str(error)) from error
        session |= received
        self._version = version

    def end(self) -> tuple[dict[str, Tensor], str | None]:
        """Closes the session. Returns what arrived, and the version named last.

        Raises:
            WeightUpdateError: none is open.
        """
        if self._arrived is None:
            raise WeightUpdateError("no weight-update session is open; call begin_weight_update first")
        arrived, self._arrived = self._arrived, None
        return arrived, self._version
