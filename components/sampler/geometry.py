"""The numbers a client must know of a model to check what a server returns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from components.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """Vocabulary, layers and experts of a model, and the tokens a sequence may have."""

    vocab_size: int
    num_layers: int
    num_experts: int
    experts_per_token: int
    context_tokens: int

    @staticmethod
    def read(folder: Path, context_tokens: int | None = None) -> ModelGeometry:
        """Reads the geometry from a Hugging Face `config.json` (the text part of a multimodal one).

        Args:
            context_tokens: the server's context, when it is less than the model's positions.

        Raises:
            CheckpointError: the file is missing or lacks a number.
        """
        path = folder / "config.json"
        try:
            document = json.loads(path.read_text())
            text = document.get("text_config", document)
            experts = text["num_experts"] if "num_experts" in text else text["num_local_experts"]
            positions = text["max_position_embeddings"]
            return ModelGeometry(
                vocab_size=text["vocab_size"],
                num_layers=text["num_hidden_layers"],
                num_experts=experts,
                experts_per_token=text["num_experts_per_tok"],
                context_tokens=positions if context_tokens is None else min(context_tokens, positions),
            )
        except KeyError as error:
            raise CheckpointError(f"{path}: key {error} is missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
