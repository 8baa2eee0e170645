"""Checkpoints as versions of a registered model.

A version points to the artifact store; MLflow holds no weights. Aliases: `base`, `sft`, and `best`, which moves only to
a checkpoint whose held-out pass rate is higher. `latest` is MLflow's own name for the newest version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from components.naming import registered_model
from components.tracking.tracker import Run, Tracker, told

ALIASES = ("base", "sft", "best")
LATEST = "latest"
_NONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""How MLflow says that there is no such model, and that it has no such alias."""
_PREFIX = registered_model("")
_KEY, _URI, _LABEL, _STEP = "longshell.key", "longshell.uri", "longshell.label", "longshell.step"
_PASS_RATE = "longshell.pass_rate"


@dataclass(frozen=True)
class Checkpoint:
    """A model in the artifact store."""

    key: str
    uri: str
    label: str
    step: int


@told
def campaigns(tracker: Tracker) -> list[str]:
    """Names of the campaigns that have a registered model, in their order."""
    models, found = None, []
    while models is None or models.token:
        models = tracker.client.search_registered_models(page_token=models.token if models else None)
        found += [model.name.removeprefix(_PREFIX) for model in models if model.name.startswith(_PREFIX)]
    return sorted(found)


class Registry:
    """The registered model of one campaign."""

    def __init__(self, tracker: Tracker, campaign: str) -> None:
        self.uri = tracker.uri
        self._client = tracker.client
        self._name = registered_model(campaign)

    @told
    def register(self, run: Run, checkpoint: Checkpoint, aliases: tuple[str, ...]) -> str:
        """Makes a version for the checkpoint, unless there is one, and moves `aliases` to it; gives its number."""
        version = self._find(checkpoint.key) or self._create(run, checkpoint)
        for alias in aliases:
            self._client.set_registered_model_alias(self._name, alias, version)
        return version

    @told
    def evaluated(self, key: str, pass_rate: float) -> bool:
        """Notes a held-out pass rate on the checkpoint's version; says whether it became the best."""
        version = self._find(key)
        if version is None:
            return False
        self._client.set_model_version_tag(self._name, version, _PASS_RATE, repr(pass_rate))
        best = self._version("best")
        if best is not None and float(best.tags.get(_PASS_RATE, "-inf")) >= pass_rate:
            return False
        self._client.set_registered_model_alias(self._name, "best", version)
        return True

    @told
    def alias(self, alias: str) -> Checkpoint | None:
        """The checkpoint an alias points to; None when it points nowhere."""
        if (found := self._version(alias)) is None:
            return None
        return Checkpoint(found.tags[_KEY], found.tags[_URI], found.tags[_LABEL], int(found.tags[_STEP]))

    def _version(self, alias: str) -> Any | None:
        if alias == LATEST:
            return max(self._versions(), key=lambda item: int(item.version), default=None)
        try:
            return self._client.get_model_version_by_alias(self._name, alias)
        except MlflowException as error:
            if error.error_code not in _NONE:
                raise
            return None

    def _create(self, run: Run, checkpoint: Checkpoint) -> str:
        tags = {
            _KEY: checkpoint.key,
            _URI: checkpoint.uri,
            _LABEL: checkpoint.label,
            _STEP: str(checkpoint.step),
        }
        name = checkpoint.label
        model = mlflow.create_external_model(name=name, source_run_id=run.run_id, tags=tags, model_type="checkpoint")
        version = mlflow.register_model(model.model_uri, self._name, tags=tags)
        self._client.update_model_version(self._name, version.version, description=checkpoint.uri)
        return str(version.version)

    def _find(self, key: str) -> str | None:
        versions = [int(item.version) for item in self._versions() if item.tags.get(_KEY) == key]
        return str(min(versions)) if versions else None

    def _versions(self) -> list[Any]:
        return list(self._client.search_model_versions(f"name = '{self._name}'"))
