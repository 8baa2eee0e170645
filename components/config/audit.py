"""How a pool is audited by a judge, repaired and selected from (stages 3 to 5 of curation)."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from components.config.section import Section, without_credentials


class EndpointConfig(Section):
    """A model behind any endpoint that speaks OpenAI's chat completions."""

    base_url: str
    """What `/chat/completions` is appended to, such as `https://host/v1`."""
    model: str = Field(min_length=1)
    api_key_env: str | None = Field("JUDGE_API_KEY", pattern=r"^[A-Z_][A-Z0-9_]*$")
    """The environment variable that holds the key, where jobs run. None: the endpoint asks for none."""
    temperature: float | None = Field(0.7, ge=0)
    """None: it is not sent."""
    max_tokens: int = Field(4_000, ge=1)
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the endpoint calls that limit."""
    structured: Literal["schema", "object", "none"] = "schema"
    """What is asked of the endpoint's own output format. The answer is parsed as strictly either way."""
    timeout_s: float = Field(300.0, gt=0)
    input_price: float | None = Field(None, ge=0)
    output_price: float | None = Field(None, ge=0)
    """US dollars per million tokens. Without them the cost is not told."""
    budget: float | None = Field(None, gt=0)
    """US dollars for everything that is asked of it. No call begins past it; those under way may exceed it."""

    @field_validator("base_url")
    @classmethod
    def _plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL")
        return without_credentials(url).rstrip("/")

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("input_price and output_price are given together or not at all")
        if self.budget is not None and self.input_price is None:
            raise ValueError("budget needs input_price and output_price")
        return self


class JudgeConfig(EndpointConfig):
    """The model that audits tasks, and rewrites instructions."""

    samples: int = Field(3, ge=1)
    """Opinions of one task, an odd number; the median counts."""
    attempts: int = Field(3, ge=1)
    """Times an opinion is asked for before its task is reported as unjudged."""
    concurrency: int = Field(8, ge=1)
    """Tasks at once, with one request each."""

    @field_validator("samples")
    @classmethod
    def _odd(cls, samples: int) -> int:
        if samples % 2 == 0:
            raise ValueError(f"must be odd, so that a majority exists, not {samples}")
        return samples


class RepairConfig(Section):
    """The rewriting of instructions, and of nothing else."""

    attempts: int = Field(2, ge=1)
    """Times a usable instruction is asked for."""
    growth: float = Field(2.0, ge=1)
    """Longest instruction, as a multiple of the words of the old one..."""
    added_words: int = Field(60, ge=0)
    """...and beyond that as many."""


class SelectionConfig(Section):
    """The most tasks of a group that are selected; None: any number. A task that names no such group is not capped."""

    per_category: int | None = Field(None, ge=1)
    per_family: int | None = Field(None, ge=1)
    per_parent: int | None = Field(None, ge=1)
    per_cohort: int | None = Field(None, ge=1)


class AuditConfig(Section):
    """Eight weighted dimensions, each from 0 to 1 (paper Fig. 4); the paper prints no thresholds, these are ours."""

    judge: JudgeConfig
    critical_minimum: float = Field(0.6, ge=0, le=1)
    """Below it in any dimension but the training value a task is rejected, whatever its score."""
    accept: float = Field(0.8, ge=0, le=1)
    borderline: float = Field(0.65, ge=0, le=1)
    repair: RepairConfig | None = RepairConfig()
    selection: SelectionConfig = SelectionConfig()

    @model_validator(mode="after")
    def _ordered(self) -> AuditConfig:
        if self.borderline > self.accept:
            raise ValueError(f"borderline {self.borderline} exceeds accept {self.accept}")
        return self
