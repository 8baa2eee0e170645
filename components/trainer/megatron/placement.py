"""Where the parameters of one rank lie in those of the whole model.

Invariant: a whole parameter is the union of what the ranks hold of it, along one dimension; ranks that hold the same
part hold equal values, and exactly one of them owns it. Names are Megatron's names in a model that is not cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from components.trainer.megatron.modules import StackedExperts
from components.trainer.megatron.platform import Place

LAYER = "decoder.layers."
EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"


@dataclass(frozen=True, slots=True)
class Placement:
    """What one rank holds of one parameter.

    Attributes:
        name: the parameter's, in the whole model.
        shape: the whole parameter's.
        dim: the dimension along which it is cut.
        start: the first index held.
        stop: the first index not held any more.
        owned: this rank is the one that writes this part.
        group: the ranks that hold the other parts; "" when it is not cut.
        copy: another stage holds the same parameter, and this is not the one that counts.
    """

    name: str
    shape: tuple[int, ...]
    dim: int
    start: int
    stop: int
    owned: bool
    group: str
    copy: bool = False

    def cut(self, whole: Tensor) -> Tensor:
        """The rank's part of a whole tensor."""
        return whole.narrow(self.dim, self.start, self.stop - self.start)


def placements(module: Any, place: Place) -> dict[str, Placement]:
    """By the rank's own name of each parameter. Parameters of optimizer state are placed like these."""
    from megatron.core import parallel_state

    experts = {id(p) for m in module.modules() if isinstance(m, StackedExperts) for p in m.parameters()}
    first_of_data = place.cp == place.dp == 0
    first_of_expert_data = parallel_state.get_expert_data_parallel_rank() == 0
    numbers = [layer.layer_number - 1 for layer in module.decoder.layers]
    found: dict[str, Placement] = {}
    for own, parameter in module.named_parameters():
        name = _whole_name(own, numbers)
        if id(parameter) in experts:
            made = _along(name, parameter, 0, place.ep, place.layout.ep, "ep", first_of_expert_data)
        elif vars(parameter).get("tensor_model_parallel"):
            dim = parameter.partition_dim
            made = _along(name, parameter, dim, place.tp, place.layout.tp, "tp", first_of_data)
        else:
            made = _along(name, parameter, 0, 0, 1, "", first_of_data and place.tp == 0)
        if own == OUTPUT and module.share_embeddings_and_output_weights:
            # A copy of the embedding, on the last of several stages; the first owns it.
            made = replace(made, name=EMBEDDING, owned=False, copy=True)
        found[own] = made
    return found


def gathered(
    parts: Mapping[str, Tensor], where: Mapping[str, Placement], experts: range | None = None
) -> dict[str, Tensor]:
    """The whole tensors of which this rank holds a part, by their names in the whole model, copies left out; of stacked
    experts these alone, when they are told. Collective over the ranks of a stage."""
    from megatron.core import parallel_state

    groups = {
        "tp": parallel_state.get_tensor_model_parallel_group(),
        "ep": parallel_state.get_expert_model_parallel_group(),
    }
    whole: dict[str, Tensor] = {}
    for own, part in parts.items():
        placement = where[own]
        if placement.copy:
            continue
        if experts is not None and placement.group == "ep":
            part = _rows(part, groups["ep"], experts)
        elif placement.group and groups[placement.group].size() > 1:
            group = groups[placement.group]
            pieces = [torch.empty_like(part) for _ in range(group.size())]
            dist.all_gather(pieces, part.contiguous(), group=group)
            part = torch.cat(pieces, placement.dim)
        whole[placement.name] = part
    return whole


def _rows(part: Tensor, group: dist.ProcessGroup, wanted: range) -> Tensor:
    """These of the rows that lie one behind the other over the ranks of a group, equally many on each."""
    held, pieces = len(part), []
    for owner in range(wanted.start // held, -(-wanted.stop // held)):
        first, last = max(wanted.start - owner * held, 0), min(wanted.stop - owner * held, held)
        piece = part[first:last]
        if group.size() > 1:
            piece = piece.clone()  # of another rank: a place for as many
            dist.broadcast(piece, group=group, group_src=owner)
        pieces.append(piece)
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def _whole_name(own: str, numbers: list[int]) -> str:
    """A pipeline stage counts its layers from 0."""
    if not own.startswith(LAYER):
        return own
    local, _, rest = own.removeprefix(LAYER).partition(".")
    return f"{LAYER}{numbers[int(local)]}.{rest}"


def _along(name: str, part: Tensor, dim: int, rank: int, ranks: int, group: str, owned: bool) -> Placement:
    size = part.shape[dim]
    shape = list(part.shape)
    shape[dim] = size * ranks
    return Placement(name, tuple(shape), dim, rank * size, (rank + 1) * size, owned, group)
