"""The alerts that are shipped as a file are ones that Prefect takes, for events that flows emit."""

from __future__ import annotations

import pytest
import yaml
from prefect.automations import AutomationCore
from prefect.events import Event, Resource

from components.cluster import REPOSITORY
from tasks import diagnose
from tasks.comparison import REGRESSED
from tasks.diagnose import RED
from tasks.results import Diagnosis

ALERTS = yaml.safe_load((REPOSITORY / "infra" / "automations" / "alerts.yaml").read_text())["automations"]


@pytest.mark.parametrize(("alert", "name"), list(zip(ALERTS, (REGRESSED, RED), strict=True)))
def test_an_alert_is_an_automation_that_is_triggered_by_its_event_on_any_campaign(
    alert: dict[str, object], name: str
) -> None:
    trigger = AutomationCore.model_validate(alert).trigger
    resource = Resource({"prefect.resource.id": "longshell.campaign.mine-s1"})
    assert trigger.expect == {name}
    assert trigger.match.matches(Event(event=name, resource=resource).resource)


def test_a_red_diagnosis_is_one_event_however_often_it_is_told_and_no_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    monkeypatch.setattr(diagnose, "emit_event", lambda name, **parts: told.append(Event(event=name, **parts)))
    for severity in ("ok", "warning", "red", "red"):
        diagnose._alarm("mine-s1", Diagnosis("a/report.md", (), f"{severity}: why", severity, ()), None)
    assert [(event.event, event.payload["verdict"], event.payload["after"]) for event in told] == [
        (RED, "red: why", "the last leg")
    ] * 2
    assert told[0].id == told[1].id
    assert told[0].resource.id == "longshell.campaign.mine-s1"
