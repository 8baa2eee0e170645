"""The assertion that a campaign makes before it starts anything."""

from __future__ import annotations

from components.config import CampaignConfig
from components.errors import ConfigError
from components.planner.host import host


def require(config: CampaignConfig, memory: int | None = None) -> None:
    """Refuses a campaign that cannot fit, with the arithmetic.

    Args:
        config: the campaign.
        memory: bytes of the machine; None for the one that we are on.

    Raises:
        ConfigError: it needs more than there is.
    """
    report = host(config, memory)
    if not report.fits:
        raise ConfigError([f"the campaign does not fit: {report.explain()}"], "plan")
