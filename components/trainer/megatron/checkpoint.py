"""A trainer's whole state in a folder, for a bit-exact continuation.

Invariant: a folder is whole or absent (`atomic_folder`); it is checked whole, names and shapes, before a single weight
of the trainer changes. Arrays are safetensors, nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from components.config import ModelConfig
from components.errors import CheckpointError
from components.trainer.folder import atomic_folder, recover
from components.trainer.megatron.network import Network
from components.trainer.megatron.weights import fit_problems, read_json, read_tensors

FORMAT = 1
STATE = "state.json"


@dataclass(frozen=True)
class Parts:
    """What a trainer consists of: its networks by name, and the actor's behaviour snapshot."""

    networks: Mapping[str, Network]
    behaviour: Mapping[str, Tensor]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every array by file, weights and snapshot sharing memory with the trainer."""
        files: dict[str, dict[str, Tensor]] = {
            "behaviour": dict(self.behaviour),
            "random": {"torch": torch.get_rng_state()},
        }
        for name, network in self.networks.items():
            files[name] = network.parameters()
            if network.optimizer is not None:
                files[f"{name}_optimizer"] = network.optimizer.state()
        return files


def save(folder: Path, parts: Parts, model: ModelConfig) -> None:
    """Writes the state."""
    files = parts.tensors()
    with atomic_folder(folder) as fresh:
        for name, tensors in files.items():
            save_file(tensors, fresh / f"{name}.safetensors")
        state = {"format": FORMAT, "model": _architecture(model), "files": sorted(files)}
        (fresh / STATE).write_text(json.dumps(state, indent=2) + "\n")


def load(folder: Path, parts: Parts, model: ModelConfig) -> None:
    """Brings a trainer of the same composition back to the state that was saved.

    Raises:
        CheckpointError: a file is missing or cut short, or the state is of another model, or of another composition.
    """
    wanted = parts.tensors()
    found = _read(folder, sorted(wanted), model)
    for name, tensors in wanted.items():
        shapes = ({key: tuple(x.shape) for key, x in side.items()} for side in (found[name], tensors))
        problems = fit_problems(*shapes)
        if problems:
            raise CheckpointError(f"{folder}: {name}: " + "; ".join(problems[:20]))
    with torch.no_grad():
        for key, value in parts.behaviour.items():
            value.copy_(found["behaviour"][key])
    for name, network in parts.networks.items():
        network.set_parameters(found[name])
        if network.optimizer is not None:
            network.optimizer.load_state(found[f"{name}_optimizer"])
    torch.set_rng_state(found["random"]["torch"])


def _architecture(model: ModelConfig) -> dict[str, Any]:
    """What the shapes and the meaning of the weights depend on."""
    return model.model_dump(mode="json", exclude={"path", "init_std", "max_position_embeddings"})


def _read(folder: Path, files: list[str], model: ModelConfig) -> dict[str, dict[str, Tensor]]:
    recover(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    state = read_json(folder / STATE)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{folder}: format {state.get('format')}, this version reads {FORMAT}")
    problems = []
    if state["files"] != files:
        problems.append(f"holds {state['files']}, this trainer is made of {files}")
    saved, ours = state["model"], _architecture(model)
    keys = sorted(saved.keys() | ours.keys())
    problems += [f"model.{k} was {saved.get(k)}, is {ours.get(k)}" for k in keys if saved.get(k) != ours.get(k)]
    if problems:
        raise CheckpointError(f"{folder}: " + "; ".join(problems))
    return {name: read_tensors([folder / f"{name}.safetensors"]) for name in files}
