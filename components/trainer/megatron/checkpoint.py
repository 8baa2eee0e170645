"""A trainer's whole state as files, for a bit-exact continuation, in the same layout or in another.

Invariant: a copy shares no memory with the trainer, and no weight of any rank changes unless every rank has read and
checked all that it needs. A tensor is stored in parts, each once, by the rank that owns it, under the tensor's name in
the whole model; so any layout can read it. Arrays are safetensors, nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from components.config import ModelConfig
from components.errors import CheckpointError
from components.trainer.folder import recover
from components.trainer.megatron.agreement import together
from components.trainer.megatron.network import Network
from components.trainer.megatron.placement import Placement
from components.trainer.megatron.weights import listed, read_json

FORMAT = 3
STATE = "state.json"
PLACES = "places"
"""Key of a file's metadata: along which dimension, and from where on, each of its tensors lies in the whole one."""

Held = Mapping[str, tuple[Tensor, Placement]]
"""What one rank holds of a file's tensors, by its own names."""


@dataclass(frozen=True)
class Parts:
    """What a trainer consists of: its networks by name, and the actor's behaviour snapshots, the newest first."""

    networks: Mapping[str, Network]
    behaviour: Sequence[Mapping[str, Tensor]]

    def held(self) -> dict[str, Held]:
        """Every tensor of this rank by file, weights and snapshot sharing memory with the trainer. Collective."""
        leads = dist.get_rank() == 0
        random = torch.get_rng_state()
        where = self.networks["actor"].placements
        files: dict[str, Held] = {"random": {"torch": (random, _alone("torch", random, leads))}}
        for age, snapshot in enumerate(self.behaviour, start=1):
            files[f"behaviour_{age}"] = {name: (value, where[name]) for name, value in snapshot.items()}
        for name, network in self.networks.items():
            files[name] = {key: (value, network.placements[key]) for key, value in network.parameters().items()}
            if network.optimizer is not None:
                state = network.optimizer.state()
                files[f"{name}_optimizer"] = {
                    key: (value, _state_placement(key, value, network.placements, leads))
                    for key, value in state.items()
                }
        return files


def copied(parts: Parts, model: ModelConfig) -> dict[str, NDArray[np.uint8]]:
    """The files that this rank contributes, by name: the parts that it owns, and on one rank the list of all files.

    Collective.
    """
    held, rank = parts.held(), dist.get_rank()
    files: dict[str, NDArray[np.uint8]] = {}
    for name, tensors in held.items():
        owned = {where.name: (tensor, where) for tensor, where in tensors.values() if where.owned}
        if owned:
            places = {key: [where.dim, where.start, where.shape] for key, (_, where) in owned.items()}
            arrays = {key: tensor.contiguous() for key, (tensor, _) in owned.items()}
            data = save(arrays, metadata={PLACES: json.dumps(places)})
            files[f"{name}-{rank:05d}.safetensors"] = np.frombuffer(data, dtype=np.uint8)
    everywhere: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everywhere, sorted(files))
    if rank == 0:
        found = [file for theirs in everywhere for file in theirs]
        names = {name: sorted(file for file in found if file.startswith(f"{name}-")) for name in held}
        state = {"format": FORMAT, "model": _architecture(model), "files": names}
        files[STATE] = np.frombuffer((json.dumps(state, indent=2) + "\n").encode(), dtype=np.uint8)
    return files


def load(folder: Path, parts: Parts, model: ModelConfig) -> None:
    """Brings a trainer of the same composition back to the state that was saved, by whatever layout. Collective.

    Raises:
        CheckpointError: a file is missing or cut short, or the state is of another model, or of another composition.
    """
    wanted = parts.held()
    with together(f"reading {folder}"):
        files = _files(folder, list(wanted), model)
        found = {name: _read(folder, files[name], wanted[name]) for name in wanted}
    with torch.no_grad():
        for age, snapshot in enumerate(parts.behaviour, start=1):
            for key, value in snapshot.items():
                value.copy_(found[f"behaviour_{age}"][key])
    for name, network in parts.networks.items():
        network.set_parameters(found[name])
        if network.optimizer is not None:
            network.optimizer.load_state(found[f"{name}_optimizer"])
    torch.set_rng_state(found["random"]["torch"])


def _alone(name: str, value: Tensor, owned: bool) -> Placement:
    """A tensor that is not cut."""
    return Placement(name, tuple(value.shape), 0, 0, value.shape[0] if value.ndim else 0, owned, "")


def _state_placement(key: str, value: Tensor, parameters: Mapping[str, Placement], leads: bool) -> Placement:
    """Moments lie where their parameter does; its counts are whole."""
    parameter, bar, entry = key.partition("|")
    if not bar:
        return _alone(key, value, leads)
    where = parameters[parameter]
    name = f"{where.name}|{entry}"
    if not value.ndim:
        return _alone(name, value, where.owned and where.start == 0)
    return Placement(name, where.shape, where.dim, where.start, where.stop, where.owned, where.group)


def _architecture(model: ModelConfig) -> dict[str, Any]:
    """What the shapes and the meaning of the weights depend on."""
    return model.model_dump(mode="json", exclude={"path", "init_std", "max_position_embeddings"})


def _files(folder: Path, names: list[str], model: ModelConfig) -> dict[str, list[str]]:
    recover(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    state = read_json(folder / STATE)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{folder}: format {state.get('format')}, this version reads {FORMAT}")
    problems = []
    if sorted(state["files"]) != sorted(names):
        problems.append(f"holds {sorted(state['files'])}, this trainer is made of {sorted(names)}")
    saved, ours = state["model"], _architecture(model)
    keys = sorted(saved.keys() | ours.keys())
    problems += [f"model.{k} was {saved.get(k)}, is {ours.get(k)}" for k in keys if saved.get(k) != ours.get(k)]
    if problems:
        raise CheckpointError(f"{folder}: " + "; ".join(problems))
    return dict(state["files"])


@dataclass(frozen=True)
class _Stored:
    """One part of a tensor on disk."""

    file: Any
    dim: int
    start: int
    shape: tuple[int, ...]


def _read(folder: Path, files: list[str], wanted: Held) -> dict[str, Tensor]:
    """This rank's part of every wanted tensor, by its own names."""
    with _opened([folder / name for name in files]) as stored:
        problems = [problem for _, where in wanted.values() if (problem := _misfit(where, stored.get(where.name, [])))]
        if problems:
            raise CheckpointError(listed(folder, problems))
        return {key: _assembled(where, stored[where.name]) for key, (_, where) in wanted.items()}


@contextlib.contextmanager
def _opened(paths: list[Path]) -> Iterator[dict[str, list[_Stored]]]:
    """The parts of every tensor in these files, in order."""
    stored: dict[str, list[_Stored]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        for path in paths:
            if not path.is_file():
                raise CheckpointError(f"{path} is missing")
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
                places = json.loads((file.metadata() or {})[PLACES])
            except (SafetensorError, KeyError, ValueError) as error:
                raise CheckpointError(f"{path} is not a whole file of a trainer's state: {error}") from error
            for name, (dim, start, shape) in places.items():
                stored[name].append(_Stored(file, dim, start, tuple(shape)))
        yield {name: sorted(parts, key=lambda part: part.start) for name, parts in stored.items()}


def _misfit(where: Placement, stored: list[_Stored]) -> str | None:
    if not stored:
        return f"missing: {where.name}"
    if stored[0].shape != where.shape:
        return f"{where.name} is {list(stored[0].shape)}, the model needs {list(where.shape)}"
    return None


def _assembled(where: Placement, stored: list[_Stored]) -> Tensor:
    if len(stored) == 1 and stored[0].start == 0 and (where.stop - where.start) == (where.shape or (0,))[where.dim]:
        whole: Tensor = stored[0].file.get_tensor(where.name)
        return whole
    pieces = []
    for part in stored:
        view = part.file.get_slice(where.name)
        size = view.get_shape()[part.dim]
        first, last = max(where.start - part.start, 0), min(where.stop - part.start, size)
        if first < last:
            pieces.append(view[(slice(None),) * part.dim + (slice(first, last),)])
    if sum(piece.shape[where.dim] for piece in pieces) != where.stop - where.start:
        raise CheckpointError(f"{where.name}: the stored parts do not cover {where.start} to {where.stop}")
    return torch.cat(pieces, where.dim)
