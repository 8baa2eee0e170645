"""Weights between Hugging Face's folders and Megatron's parameters, Qwen3-MoE and Qwen3.5-MoE.

Invariants: the mapping is a bijection on the on-disk keys, so a round trip is bit-equal; nothing is loaded unless every
key is there, none is left over and every shape fits; a saved folder loads in transformers with the same logits.

Megatron fuses: `linear_fc1` of an expert holds the gate's rows above the up projection's. `mixers` has the rest of a
layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from components.config import ModelConfig
from components.config.hugging_face import document, shape
from components.errors import CheckpointError, ConfigError
from components.trainer.folder import recover
from components.trainer.megatron import mixers
from components.trainer.megatron.agreement import shared_folder

MODEL_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT32_BYTES = 4
"""Of each element that is written."""

INSIDE = "model.language_model."
LEFT_OUT = ("model.visual.", "mtp.")
"""Of a published Qwen3.5: where the text model is, and what is not part of it."""

RENAMED = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
}
"""Parameters of a layer that differ in name only: Megatron's to Hugging Face's."""


def layers_of(names: Iterable[str], prefix: str) -> list[int]:
    """The layers that occur in these names, ascending."""
    return sorted({int(name.removeprefix(prefix).split(".", 1)[0]) for name in names if name.startswith(prefix)})


def expected_shapes(model: ModelConfig, labels: int | None = None) -> dict[str, tuple[int, ...]]:
    """Every key that a Hugging Face folder of `model` holds on disk, with its shape; of a critic, with its `labels`."""
    hidden, inner = model.hidden_size, model.moe_intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    for layer in range(model.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate.weight": (model.num_experts, hidden),
            **{prefix + name: shape for name, shape in mixers.shapes(model, layer).items()},
        }
        for expert in range(model.num_experts):
            shapes |= {
                f"{prefix}mlp.experts.{expert}.gate_proj.weight": (inner, hidden),
                f"{prefix}mlp.experts.{expert}.up_proj.weight": (inner, hidden),
                f"{prefix}mlp.experts.{expert}.down_proj.weight": (hidden, inner),
            }
    shapes["model.norm.weight"] = (hidden,)
    if labels is not None:
        shapes |= {"score.weight": (labels, hidden), "score.bias": (labels,)}
    elif not model.tie_word_embeddings:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    return shapes


ENDS = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
"""Parameters outside the layers: Megatron's to Hugging Face's."""

VALUE_HEAD = {"output_layer.weight": "score.weight", "output_layer.bias": "score.bias"}
"""The same of a critic, which is a token classifier in transformers' names. Only its output layer has a bias."""


EXPERTS = ".mlp.experts."
"""In the names of routed experts, Megatron's and Hugging Face's."""
PIECE_BYTES = 2**28
"""More at once is no faster."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tensors of a Hugging Face folder that are brought together at once.

    Attributes:
        layer: that all of them belong to; None outside the layers.
        experts: the routed experts that they belong to; None when they belong to none.
        names: Hugging Face's.
    """

    layer: int | None
    experts: range | None
    names: tuple[str, ...]

    def takes(self, parameter: str) -> bool:
        """Whether a parameter, by Megatron's name, is needed for it."""
        if self.layer is None:
            return ENDS.get(parameter) in self.names
        inside = parameter.startswith(f"decoder.layers.{self.layer}.")
        return inside and (EXPERTS in parameter) == (self.experts is not None)


def pieces(model: ModelConfig) -> list[Piece]:
    """All tensors of a folder, each in one piece: of at most half of the largest tensor's bytes, or of one tensor.

    So a piece, and what is copied out of it, take no more together than the largest tensor.
    """
    sizes = {name: FLOAT32_BYTES * math.prod(shape) for name, shape in expected_shapes(model).items()}
    limit = min(max(sizes.values()) // 2, PIECE_BYTES)
    made: list[list[str]] = []
    room, before = 0, (-1, False)
    for name, size in sizes.items():
        kind = (next(iter(layers_of([name], "model.layers.")), -1), EXPERTS in name)
        if kind != before or size > room or kind[0] < 0:
            made.append([])
            room, before = limit, kind
        made[-1].append(name)
        room -= size
    return [_piece(names) for names in made]


def _piece(names: Sequence[str]) -> Piece:
    layer = next(iter(layers_of(names, "model.layers.")), None)
    experts = [int(name.partition(EXPERTS)[2].partition(".")[0]) for name in names if EXPERTS in name]
    return Piece(layer, range(experts[0], experts[-1] + 1) if experts else None, tuple(names))


def to_megatron(weights: Mapping[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Megatron's parameters from Hugging Face's on-disk ones, of the layers and ends that are given."""
    ends = [*ENDS.items(), *VALUE_HEAD.items()]
    result = {name: weights[other] for name, other in ends if other in weights}
    for layer in layers_of(weights, "model.layers."):
        theirs, ours = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        result |= {ours + name: weights[theirs + other] for name, other in RENAMED.items()}
        result |= {ours + name: x for name, x in mixers.to_megatron(weights, model, layer, theirs).items()}
        experts = [f"{theirs}mlp.experts.{expert}." for expert in range(model.num_experts)]
        result[ours + "mlp.experts.linear_fc1"] = torch.stack(
            [torch.cat([weights[e + "gate_proj.weight"], weights[e + "up_proj.weight"]]) for e in experts]
        )
        result[ours + "mlp.experts.linear_fc2"] = torch.stack([weights[e + "down_proj.weight"] for e in experts])
    return result


def to_hugging_face(parameters: Mapping[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Hugging Face's on-disk weights from Megatron's parameters, of the layers and ends that are given: copies."""
    return {name: _copy(tensor) for name, tensor in _hugging_face_views(parameters, model)}


def stream_piece(parameters: Mapping[str, Tensor], model: ModelConfig, piece: Piece) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a piece one by one, in no order: a copy of each, made when it is asked for.

    Args:
        parameters: those that the piece `takes`; of stacked experts, its own alone.
    """
    for name, tensor in _piece_views(parameters, model, piece):
        if name in piece.names:
            yield name, _copy(tensor)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().clone()


def _piece_views(parameters: Mapping[str, Tensor], model: ModelConfig, piece: Piece) -> Iterator[tuple[str, Tensor]]:
    if piece.layer is None:
        yield from ((other, parameters[name]) for name, other in ENDS.items() if name in parameters)
    elif piece.experts is None:
        yield from _layer_views(parameters, model, piece.layer)
    else:
        yield from _expert_views(parameters, piece.layer, piece.experts)


def _hugging_face_views(parameters: Mapping[str, Tensor], model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    ends = ENDS | VALUE_HEAD if parameters.keys() >= VALUE_HEAD.keys() else ENDS
    yield from ((other, parameters[name]) for name, other in ends.items() if name in parameters)
    for layer in layers_of(parameters, "decoder.layers."):
        yield from _layer_views(parameters, model, layer)
        yield from _expert_views(parameters, layer, range(model.num_experts))


def _layer_views(parameters: Mapping[str, Tensor], model: ModelConfig, layer: int) -> Iterator[tuple[str, Tensor]]:
    """Of a layer without its experts."""
    theirs, ours = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    yield from ((theirs + other, parameters[ours + name]) for name, other in RENAMED.items())
    mixer = mixers.to_hugging_face(parameters, model, layer, ours)
    yield from ((theirs + name, tensor) for name, tensor in mixer.items())


def _expert_views(parameters: Mapping[str, Tensor], layer: int, experts: range) -> Iterator[tuple[str, Tensor]]:
    """Of these experts of a layer, whose stacked parameters hold them alone."""
    ours = f"decoder.layers.{layer}{EXPERTS}"
    stacked = parameters[ours + "linear_fc1"], parameters[ours + "linear_fc2"]
    for expert, first, second in zip(experts, *stacked, strict=True):
        prefix = f"model.layers.{layer}{EXPERTS}{expert}."
        gate, up = first.chunk(2)
        yield prefix + "gate_proj.weight", gate
        yield prefix + "up_proj.weight", up
        yield prefix + "down_proj.weight", second


def write_folder(
    folder: Path,
    parameters: Mapping[str, Tensor],
    model: ModelConfig,
    *,
    stage: tuple[int, int] = (0, 1),
    labels: int | None = None,
) -> None:
    """Writes weights and configuration; the folder appears whole or not at all. All ranks must call it.

    Args:
        folder: where to.
        parameters: whole ones of one pipeline stage; empty on ranks that write nothing.
        model: the shape.
        stage: its number, from 0, and the number of stages. Each is a file.
        labels: outputs of a critic's head; None for a language model.
    """
    number, parts = stage
    name = MODEL_FILE if parts == 1 else f"model-{number + 1:05d}-of-{parts:05d}.safetensors"

    def seal(fresh: Path) -> None:
        (fresh / "config.json").write_text(json.dumps(_document(model, labels), indent=2) + "\n")
        if parts > 1:
            files = {file: shapes_in([file]) for file in sorted(fresh.glob("model-*"))}
            size = FLOAT32_BYTES * sum(math.prod(shape) for shapes in files.values() for shape in shapes.values())
            where = {key: file.name for file, shapes in files.items() for key in shapes}
            index = {"metadata": {"total_size": size}, "weight_map": where}
            (fresh / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")

    with shared_folder(folder, seal) as fresh:
        if parameters:
            save_file(to_hugging_face(parameters, model), fresh / name, metadata={"format": "pt"})


def read_folder(
    folder: Path, model: ModelConfig, *, layers: Sequence[int] | None = None, labels: int | None = None
) -> dict[str, Tensor]:
    """Megatron's float32 parameters from a Hugging Face folder, whole ones; of `layers` and the ends, or of all.

    With `labels` the folder is a critic's, whose head has as many outputs.

    Raises:
        CheckpointError: the folder, its configuration or a file is missing or broken, or keys or shapes do not fit.
    """
    problems = _config_problems(folder, model)
    files = _weight_files(folder)
    found = sources(shapes_in(files), model)
    if model.tie_word_embeddings and "lm_head.weight" in found:
        ends = _read(
            files, {name: found[name] for name in ("lm_head.weight", "model.embed_tokens.weight") if name in found}
        )
        del found["lm_head.weight"]
        if not torch.equal(ends["lm_head.weight"], ends.get("model.embed_tokens.weight", ends["lm_head.weight"])):
            problems.append("lm_head.weight differs from model.embed_tokens.weight, but the model ties them")
    shapes = {name: source.shape for name, source in found.items()}
    problems += fit_problems(shapes, expected_shapes(model, labels))
    if problems:
        raise CheckpointError(listed(folder, problems))
    kept = set(found) if layers is None else _of_layers(found, layers)
    weights = _read(files, {name: found[name] for name in kept})
    return to_megatron({name: tensor.float() for name, tensor in weights.items()}, model)


class Source(NamedTuple):
    """Where a folder keeps one of the tensors that we name: in which of its own, and what part of that."""

    name: str
    part: tuple[int | slice, ...]
    shape: tuple[int, ...]


def sources(stored: Mapping[str, tuple[int, ...]], model: ModelConfig) -> dict[str, Source]:
    """By our names, from the names and shapes of what is stored.

    Published folders of Qwen3.5 hold a multimodal model: the text model is inside it, its vision and its layers that
    predict further tokens are left out, and all experts of a layer stand in one tensor.
    """
    found: dict[str, Source] = {}
    for name, size in stored.items():
        if model.hybrid is None:
            found[name] = Source(name, (), size)
            continue
        if name.startswith(LEFT_OUT):
            continue
        own = name.replace(INSIDE, "model.", 1)
        prefix, _, kind = own.rpartition(".experts.")
        if prefix and kind == "gate_up_proj":
            half = size[1] // 2
            for expert in range(size[0]):
                for side, rows in (("gate", slice(0, half)), ("up", slice(half, 2 * half))):
                    key = f"{prefix}.experts.{expert}.{side}_proj.weight"
                    found[key] = Source(name, (expert, rows), (half, size[2]))
        elif prefix and kind == "down_proj":
            for expert in range(size[0]):
                found[f"{prefix}.experts.{expert}.down_proj.weight"] = Source(name, (expert,), size[1:])
        else:
            found[own] = Source(name, (), size)
    return found


def fit_problems(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Every key that is missing, left over or of another shape."""
    problems = [f"missing: {name}" for name in wanted if name not in found]
    problems += [f"unexpected: {name}" for name in found if name not in wanted]
    problems += [
        f"{name} is {list(shape)}, the model needs {list(wanted[name])}"
        for name, shape in found.items()
        if name in wanted and shape != wanted[name]
    ]
    return problems


def shapes_in(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of safetensors files; CheckpointError when one is missing or cut short."""
    return {
        name: tuple(opened.get_slice(name).get_shape())
        for opened in map(_opened, files)
        for name in opened.keys()  # noqa: SIM118  (not a mapping)
    }


def _read(files: Sequence[Path], wanted: Mapping[str, Source]) -> dict[str, Tensor]:
    """By our names."""
    found = {}
    for opened in map(_opened, files):
        there = set(opened.keys())
        for name, source in wanted.items():
            if source.name in there:
                whole = opened.get_slice(source.name)
                found[name] = whole[source.part] if source.part else opened.get_tensor(source.name)
    return found


def read_json(file: Path) -> Any:
    """The content of a JSON file of a checkpoint; CheckpointError when it is missing or cut short."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def _document(model: ModelConfig, labels: int | None) -> dict[str, Any]:
    """The `config.json`; a critic's names its outputs, for transformers to build as many."""
    config = document(model)
    if labels is None:
        return config
    (name,) = config["architectures"]
    outputs = {str(label): f"value-{label}" for label in range(labels)}
    return config | {"architectures": [name.replace("ForCausalLM", "ForTokenClassification")], "id2label": outputs}


def _opened(file: Path) -> Any:
    if not file.is_file():
        raise CheckpointError(f"{file} is missing")
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not a whole safetensors file: {error}") from error


def _of_layers(names: Iterable[str], layers: Sequence[int]) -> set[str]:
    prefix = "model.layers."
    wanted = tuple(f"{prefix}{layer}." for layer in layers)
    return {name for name in names if not name.startswith(prefix) or name.startswith(wanted)}


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if not index.is_file():
        return [folder / MODEL_FILE]
    return [folder / name for name in sorted(set(read_json(index)["weight_map"].values()))]


def _config_problems(folder: Path, model: ModelConfig) -> list[str]:
    recover(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    try:
        found = shape(read_json(folder / "config.json"), "config.json").model_dump()
    except ConfigError as error:
        return [f"config.json: {problem}" for problem in error.problems]
    wanted = model.model_dump(exclude={"path", "init_std", "max_position_embeddings"})
    return [
        f"config.json has {name} {found[name]!r}, the model needs {value!r}"
        for name, value in wanted.items()
        if found[name] != value
    ]


def listed(folder: Path, problems: list[str]) -> str:
    """One message for all of a folder's problems, the first twenty in words."""
    shown = [f"  - {problem}" for problem in problems[:20]]
    rest = [f"  … and {len(problems) - 20} more"] if len(problems) > 20 else []
    return "\n".join([f"{folder}: {len(problems)} problem{'s' * (len(problems) > 1)}", *shown, *rest])
