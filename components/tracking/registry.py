"""Checkpoints as versions of a registered model.

A version points to the artifact store; MLflow holds no weights. Aliases: `base`, `sft`, and `best`, which moves only to
a checkpoint whose held-out pass rate is higher. `latest` is MLflow's own name for the newest version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from components.tracking.tracker import Run, Tracker

ALIASES = ("base", "sft", "best")
LATEST = "latest"
_URI, _PASS_RATE = "longshell.uri", "longshell.pass_rate"


@dataclass(frozen=True)
class Checkpoint:
    """A model in the artifact store."""

    uri: str
    stage: str
    step: int


class Registry:
    """The registered model of one campaign."""

    def __init__(self, tracker: Tracker, campaign: str) -> None:
        self._client = tracker.client
        self._name = f"longshell-{campaign}"

    def register(self, run: Run, checkpoint: Checkpoint, aliases: tuple[str, ...]) -> str:
        """Makes a version for the checkpoint, unless there is one, and moves `aliases` to it; gives its number."""
        version = self._find(checkpoint.uri) or self._create(run, checkpoint)
        for alias in aliases:
            self._client.set_registered_model_alias(self._name, alias, version)
        return version

    def evaluated(self, uri: str, pass_rate: float) -> bool:
        """Notes a held-out pass rate on the checkpoint's version; says whether it became the best."""
        version = self._find(uri)
        if version is None:
            return False
        self._client.set_model_version_tag(self._name, version, _PASS_RATE, repr(pass_rate))
        best = self.alias("best")
        if best is not None and float(best.get(_PASS_RATE, "-inf")) >= pass_rate:
            return False
        self._client.set_registered_model_alias(self._name, "best", version)
        return True

    def alias(self, alias: str) -> Mapping[str, str] | None:
        """Tags of the version an alias points to, `longshell.uri` among them; None when it points nowhere."""
        if alias == LATEST:
            newest = max(self._versions(), key=lambda item: int(item.version), default=None)
            return None if newest is None else {**newest.tags, "version": newest.version}
        try:
            found = self._client.get_model_version_by_alias(self._name, alias)
        except MlflowException:
            return None
        return {**found.tags, "version": found.version}

    def _create(self, run: Run, checkpoint: Checkpoint) -> str:
        tags = {_URI: checkpoint.uri, "longshell.stage": checkpoint.stage, "longshell.step": str(checkpoint.step)}
        name = f"{checkpoint.stage}-{checkpoint.step}"
        model = mlflow.create_external_model(name=name, source_run_id=run.run_id, tags=tags, model_type="checkpoint")
        version = mlflow.register_model(model.model_uri, self._name, tags=tags)
        self._client.update_model_version(self._name, version.version, description=checkpoint.uri)
        return str(version.version)

    def _find(self, uri: str) -> str | None:
        versions = [int(item.version) for item in self._versions() if item.tags.get(_URI) == uri]
        return str(min(versions)) if versions else None

    def _versions(self) -> list[Any]:
        return list(self._client.search_model_versions(f"name = '{self._name}'"))
