"""What a stage that is run on its own finds of a campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.cluster import REPOSITORY
from components.config import load
from components.errors import ConfigError
from tasks.campaign import claim, claim_key
from tasks.find import claimed
from tasks.site import Site
from tests import services


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = services.site(store_url=str(tmp_path / "store"))
    monkeypatch.setattr(Site, "current", lambda: made)
    return made


def test_a_campaign_is_evaluated_with_the_configuration_that_it_was_begun_with(site: Site) -> None:
    config = load(REPOSITORY / "configs" / "miniature.yaml", ["name=mine", "seed=3"])
    claim(config, site.store())
    assert claimed.fn("mine-s3") == config


def test_a_campaign_that_the_store_does_not_have_or_that_is_of_another_version_is_refused_by_name(site: Site) -> None:
    with pytest.raises(ConfigError, match=r"there is no campaigns/gone-s1/campaign\.json"):
        claimed.fn("gone-s1")
    site.store().put_json(claim_key("old-s1"), {"config": {"name": "old", "epochs": 3}, "started_s": 0.0})
    with pytest.raises(ConfigError, match=r"(?s)campaigns/old-s1/campaign\.json.*epochs"):
        claimed.fn("old-s1")
