"""What a teacher has cost: on disk, answer by answer, so that an attempt that follows a killed one goes on counting.

Invariant: an answer is in the file before it is used. A line that was cut counts for nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from components.config import EndpointConfig
from components.curation.endpoint import Answer
from components.curation.quality import Purse


class Account:
    """The account of one stage, kept in a file of JSON lines. One process uses it at a time."""

    def __init__(self, config: EndpointConfig, path: Path) -> None:
        self._path = path
        self._purse = Purse(config)
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                answer = Answer("", None, **json.loads(line))
            except (ValueError, TypeError):
                continue
            self._purse.count(answer)

    @property
    def empty(self) -> bool:
        """Whether the budget allows no further request."""
        return self._purse.empty

    def count(self, answer: Answer) -> None:
        """Adds an answer.

        Raises:
            ConfigError: there is a budget, and the endpoint does not tell how many tokens it took.
        """
        told = asdict(answer)
        line = json.dumps({name: told[name] for name in ("prompt_tokens", "completion_tokens")})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
        self._purse.count(answer)
        self._purse.paid += 1

    def to_json(self) -> dict[str, Any]:
        """The figures of a result. Without a price for every answer there is no cost."""
        figures = self._purse.to_json()
        del figures["bad_answers"]  # nothing here judges an answer but the harness, which counts it as the trial's
        return figures
