"""Where this installation keeps its state and finds its services: the only place that reads `LONGSHELL_*`.

| variable | meaning | default |
|---|---|---|
| `LONGSHELL_HOME` | state directory | `var/` in the repository |
| `LONGSHELL_STORE` | artifact store: a folder, or `s3://bucket/prefix` | `<home>/store` |
| `LONGSHELL_RAY_JOBS` | Jobs URL of a Ray cluster that is not ours | the local stack's |
| `PREFECT_API_URL` | a Prefect server that is not ours | the local stack's |
| `MLFLOW_TRACKING_URI` | an MLflow server, or the database of ours (`postgresql://…`) | SQLite in `<home>/mlflow` |
| `LONGSHELL_PREFECT_DATABASE` | the database of our Prefect server (`postgresql://…`) | SQLite in `<home>/prefect` |
| `LONGSHELL_{PREFECT,RAY,MLFLOW}_PORT` | port of a local service | the usual one when free, otherwise any free one |
| `LONGSHELL_JOBS_PACKAGE` | where the stages' entry modules are | `components.jobs` |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from components.artifacts import ArtifactStore, open_store
from components.cluster import REPOSITORY, Cluster
from components.errors import ConfigError, ServiceError

_POSTGRESQL = ("postgresql://", "postgresql+", "postgres://")
_SERVER = ("http://", "https://")


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
    prefect_database: str | None = None
    """Address for SQLAlchemy; None is Prefect's own, SQLite in its home."""

    @classmethod
    def current(cls, environment: Mapping[str, str] | None = None) -> Site:
        """The site that the environment describes.

        Raises:
            ConfigError: a port is not a number, a database is of no known kind or lacks its driver.
        """
        env = os.environ if environment is None else environment
        home = Path(env.get("LONGSHELL_HOME") or REPOSITORY / "var").absolute()
        mlflow = env.get("MLFLOW_TRACKING_URI")
        given = {
            "prefect": env.get("PREFECT_API_URL"),
            "ray": env.get("LONGSHELL_RAY_JOBS"),
            "mlflow": mlflow if mlflow and mlflow.startswith(_SERVER) else None,
        }
        ports = {name: env.get(f"LONGSHELL_{name.upper()}_PORT") for name in ("prefect", "ray", "mlflow")}
        bad = [f"LONGSHELL_{name.upper()}_PORT: {port!r}" for name, port in ports.items() if not _is_port(port)]
        problems = [f"{item} is not a port number" for item in bad]
        prefect = env.get("LONGSHELL_PREFECT_DATABASE")
        if prefect and not prefect.startswith(_POSTGRESQL):
            problems.append("LONGSHELL_PREFECT_DATABASE is not of the form postgresql://user:password@host/name")
        if mlflow and not mlflow.startswith((*_SERVER, *_POSTGRESQL, "sqlite:///")):
            problems.append("MLFLOW_TRACKING_URI is none of https://…, postgresql://… and sqlite:///…")
        if mlflow and mlflow.startswith(_POSTGRESQL) and find_spec("psycopg2") is None:
            problems.append("MLFLOW_TRACKING_URI: PostgreSQL needs psycopg2: install longshell[postgres]")
        if problems:
            raise ConfigError(problems, "environment")
        return cls(
            home=home,
            store_url=env.get("LONGSHELL_STORE") or str(home / "store"),
            tracking_uri=_driven(mlflow, "psycopg2") or f"sqlite:///{home}/mlflow/mlflow.db",
            jobs_package=env.get("LONGSHELL_JOBS_PACKAGE") or "components.jobs",
            given={name: url for name, url in given.items() if url},
            ports={name: int(port) for name, port in ports.items() if port},
            prefect_database=_driven(prefect, "asyncpg"),
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

    def cluster(self, store: ArtifactStore, patience_s: float = 60.0) -> Cluster:
        """The Ray cluster.

        Raises:
            ServiceError: there is none, or it has not answered for so long.
        """
        address = self.service("ray")
        if address is None:
            raise ServiceError(f"no Ray cluster: `make ui` starts one (looked in {self.stack_file})")
        ours = "ray" not in self.given
        token = self.ray_token.read_text() if ours else None
        return Cluster(address, store, token=token, package=self.jobs_package, patience_s=patience_s)


def _driven(address: str | None, driver: str) -> str | None:
    """The address of a PostgreSQL, with the driver that its user has."""
    if not address or not address.startswith(_POSTGRESQL):
        return address or None
    return f"postgresql+{driver}://{address.partition('://')[2]}"


def _is_port(text: str | None) -> bool:
    return not text or (text.isdecimal() and 0 < int(text) < 65_536)
