"""The assertion that a campaign makes before it starts anything.

Invariant: a campaign is held against what it trains on, in the layout that it configures: against one of its GPUs when
it says what memory they have, else against the memory of the machine; in float32, and with all that a leg holds.
"""

from __future__ import annotations

from components.config import CampaignConfig
from components.errors import ConfigError
from components.planner.device import DeviceReport, device
from components.planner.host import HostReport, host


def assess(config: CampaignConfig, memory: int | None = None) -> DeviceReport | HostReport:
    """The arithmetic of a campaign.

    Args:
        config: the campaign.
        memory: bytes of the machine; None for the one that we are on. Not asked for when GPUs train.
    """
    device_memory_gib = config.trainer.device_memory_gib
    return host(config, memory) if device_memory_gib is None else device(config, device_memory_gib)


def require(config: CampaignConfig, memory: int | None = None) -> None:
    """Refuses a campaign that cannot fit, with the arithmetic. Arguments as of `assess`.

    Raises:
        ConfigError: it needs more than there is.
    """
    report = assess(config, memory)
    if not report.fits:
        raise ConfigError([f"the campaign does not fit: {report.explain()}"], "plan")
