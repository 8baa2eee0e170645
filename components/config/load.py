"""Reading a campaign configuration from a file and the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from components.config.campaign import CampaignConfig
from components.config.consistency import inconsistencies
from components.config.layout import NEVER
from components.config.lenient import readable
from components.config.section import Problems
from components.errors import ConfigError


def load(path: str | Path, overrides: Sequence[str] = ()) -> CampaignConfig:
    """Reads a YAML file, applies `key.path=value` overrides, and validates the whole.

    Values of overrides are YAML: `rl.legs=2`, `sampler.urls=[http://a:1]`, `model.path=null`.

    Raises:
        ConfigError: the file is missing or not a mapping, an override is malformed, or any key is unknown or out of
            range. Every problem is listed with its path.
    """
    return validate(*read(path, overrides))


def read(path: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """The document of a YAML file with its overrides, not validated; and what names it in an error.

    Raises:
        ConfigError: the file is missing or not a mapping, or an override is malformed.
    """
    file = Path(path)
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError([f"is not text in UTF-8: {error}"], str(path)) from error
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror or error}"], str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"is not valid YAML: {error}"], str(path)) from error
    if not isinstance(document, dict):
        raise ConfigError(["must be a mapping of sections"], str(path))
    problems = [problem for override in overrides if (problem := _apply(document, override))]
    if problems:
        raise ConfigError(problems, str(path))
    return document, " with ".join([str(path), *overrides])


def validate(document: dict[str, Any], source: str) -> CampaignConfig:
    """Validates a parsed document; `source` names it in the error.

    Raises:
        ConfigError: lists every problem with its key path. What does not go together is found beside what is wrong by
            itself, wherever the sections that it is about can be read.
    """
    try:
        return CampaignConfig.model_validate(document)
    except ValidationError as error:
        alone = [problem for item in error.errors() if item["loc"] for problem in _describe(item)]
        found = readable(document)
        raise ConfigError([*alone, *inconsistencies(found.config, found.unreadable)], source) from error


def digest(config: CampaignConfig) -> str:
    """A short digest of the resolved configuration; equal configurations have equal digests."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _apply(document: dict[str, Any], override: str) -> str | None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        return f"override {override!r} is not of the form key.path=value"
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return f"override {override!r}: the value is not valid YAML"
    node = document
    *parents, leaf = key.split(".")
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            return f"override {override!r}: {parent} is not a section"
        node = child
    node[leaf] = value
    return None


def _describe(item: Any) -> list[str]:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        reason = NEVER.get(str(item["loc"][-1]))
        return [f"{where}: unknown key" if reason is None else f"{where}: {reason}"]
    error = item.get("ctx", {}).get("error")
    told = error.problems if isinstance(error, Problems) else [item["msg"].removeprefix("Value error, ")]
    return [f"{where}: {problem}" for problem in told]
