"""The assertion that a campaign makes before it starts anything.

Invariant: a campaign is held against what it trains on, in the layout that it configures: against one of its GPUs when
it says what memory they have (Eq 21), else against the memory of the machine.
"""

from __future__ import annotations

from components.config import CampaignConfig
from components.errors import ConfigError
from components.planner.capacity import CapacityReport, Plan, capacity
from components.planner.host import HostReport, host
from components.planner.shape import ModelShape


def assess(config: CampaignConfig, memory: int | None = None) -> CapacityReport | HostReport:
    """The arithmetic of a campaign.

    Args:
        config: the campaign.
        memory: bytes of the machine; None for the one that we are on. Not asked for when GPUs train.
    """
    trainer = config.trainer
    if trainer.device_memory_gib is None:
        return host(config, memory)
    plan = Plan(trainer.layout, trainer.device_memory_gib)
    return capacity(plan, ModelShape.of(config.model), trainer.micro_batch_tokens)


def require(config: CampaignConfig, memory: int | None = None) -> None:
    """Refuses a campaign that cannot fit, with the arithmetic. Arguments as of `assess`.

    Raises:
        ConfigError: it needs more than there is.
    """
    report = assess(config, memory)
    if not report.fits:
        raise ConfigError([f"the campaign does not fit: {report.explain()}"], "plan")
