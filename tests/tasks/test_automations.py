"""The alerts that are shipped as a file are ones that Prefect takes, for events that flows emit."""

from __future__ import annotations

import pytest
import yaml
from prefect.automations import AutomationCore
from prefect.events import Event, Resource

from components.cluster import REPOSITORY
from tasks.comparison import REGRESSED
from tasks.hold import RED

ALERTS = yaml.safe_load((REPOSITORY / "infra" / "automations" / "alerts.yaml").read_text())["automations"]


@pytest.mark.parametrize(("alert", "name"), list(zip(ALERTS, (REGRESSED, RED), strict=True)))
def test_an_alert_is_an_automation_that_is_triggered_by_its_event_on_any_campaign(
    alert: dict[str, object], name: str
) -> None:
    trigger = AutomationCore.model_validate(alert).trigger
    resource = Resource({"prefect.resource.id": "longshell.campaign.mine-s1"})
    assert trigger.expect == {name}
    assert trigger.match.matches(Event(event=name, resource=resource).resource)
