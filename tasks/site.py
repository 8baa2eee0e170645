"""Where this installation keeps its state and finds its services: the only place that reads `LONGSHELL_*`.

| variable | meaning | default |
|---|---|---|
| `LONGSHELL_HOME` | state directory | `var/` in the repository |
| `LONGSHELL_STORE` | artifact store: a folder, or `s3://bucket/prefix` | `<home>/store` |
| `LONGSHELL_RAY_JOBS` | Jobs URL of a Ray cluster that is not ours | the local stack's |
| `PREFECT_API_URL` | a Prefect server that is not ours | the local stack's |
| `MLFLOW_TRACKING_URI` | an MLflow server | SQLite in `<home>/mlflow` |
| `LONGSHELL_{PREFECT,RAY,MLFLOW}_PORT` | port of a local service | the usual one when free, otherwise any free one |
| `LONGSHELL_JOBS_PACKAGE` | where the stages' entry modules are | `components.jobs` |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from components.artifacts import ArtifactStore, open_store
from components.cluster import REPOSITORY, Cluster
from components.errors import ConfigError, ServiceError


@dataclass(frozen=True)
class Site:
    """One installation."""

    home: Path
    store_url: str
    tracking_uri: str
    jobs_package: str
    given: Mapping[str, str] = field(default_factory=dict)
    """Services that exist already and are not ours to start: name to URL."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Ports asked for, by service name."""

    @classmethod
    def current(cls, environment: Mapping[str, str] | None = None) -> Site:
        """The site that the environment describes.

        Raises:
            ConfigError: a port is not a number.
        """
        env = os.environ if environment is None else environment
        home = Path(env.get("LONGSHELL_HOME") or REPOSITORY / "var").absolute()
        given = {"prefect": env.get("PREFECT_API_URL"), "ray": env.get("LONGSHELL_RAY_JOBS")}
        ports = {name: env.get(f"LONGSHELL_{name.upper()}_PORT") for name in ("prefect", "ray", "mlflow")}
        if bad := [f"LONGSHELL_{name.upper()}_PORT: {port!r}" for name, port in ports.items() if not _is_port(port)]:
            raise ConfigError([f"{item} is not a port number" for item in bad], "environment")
        return cls(
            home=home,
            store_url=env.get("LONGSHELL_STORE") or str(home / "store"),
            tracking_uri=env.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home}/mlflow/mlflow.db",
            jobs_package=env.get("LONGSHELL_JOBS_PACKAGE") or "components.jobs",
            given={name: url for name, url in given.items() if url},
            ports={name: int(port) for name, port in ports.items() if port},
        )

    @property
    def stack_file(self) -> Path:
        """What the supervisor wrote about the services it started."""
        return self.home / "stack" / "state.json"

    @property
    def ray_token(self) -> Path:
        """File with the token of the local stack's Ray head."""
        return self.home / "stack" / "ray_token"

    def service(self, name: str) -> str | None:
        """URL of a service, given or started by the local stack; None when there is none."""
        if name in self.given:
            return self.given[name]
        try:
            services = json.loads(self.stack_file.read_text())["services"]
        except FileNotFoundError:
            return None
        return services[name]["url"] if name in services else None

    def store(self) -> ArtifactStore:
        """The artifact store."""
        return open_store(self.store_url)

    def cluster(self, store: ArtifactStore) -> Cluster:
        """The Ray cluster.

        Raises:
            ServiceError: there is none, or it does not answer.
        """
        address = self.service("ray")
        if address is None:
            raise ServiceError(f"no Ray cluster: `make ui` starts one (looked in {self.stack_file})")
        ours = "ray" not in self.given
        return Cluster(address, store, token=self.ray_token.read_text() if ours else None, package=self.jobs_package)


def _is_port(text: str | None) -> bool:
    return not text or (text.isdecimal() and 0 < int(text) < 65_536)
