"""Runs and metrics in MLflow.

Invariant: saying the same thing twice, from any process, leaves one record. Runs are found again by a tag; a step, or a
part of it, is logged once, with the time at which it was committed and not the time at which it was logged; the first
logged record stays, because MLflow cannot replace one.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import unquote

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # Read by MLflow when it is imported.

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from components.databases import unreachable
from components.errors import ServiceError
from components.naming import EXPERIMENT, anonymous, hidden, run_key, shown

KEY = "longshell.key"
"""Tag by which a run is found again: `<campaign>` or `<campaign>/<stage>`."""
COMMITTED = "time/committed_ms"
"""Metric that marks a step as logged; its value is the step's commit time, exact below 2^53. Parts have one each."""
_TABLES = "mlflow.loggedArtifacts"
"""Tag by which MLflow knows which files of a run are tables."""
_TABLES_SHOWN = 60
"""The newest of them: a tag has at most 8,000 characters."""
_PARAM_CHARS = 6_000
"""Longest value MLflow stores of one parameter."""


class HasAddress(Protocol):
    """What asks an MLflow."""

    @property
    def uri(self) -> str:
        """Its address, which may have a password."""
        ...


_Asker = TypeVar("_Asker", bound=HasAddress)
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def told(ask: Callable[Concatenate[_Asker, _Asked], _Answer]) -> Callable[Concatenate[_Asker, _Asked], _Answer]:
    """What asks MLflow, with its errors as ours: of one message each, and without a password.

    Raises:
        ServiceError: MLflow or its database did not do what it was asked.
    """

    @functools.wraps(ask)
    def asking(asker: _Asker, /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        try:
            return ask(asker, *args, **kwargs)
        except (MlflowException, SQLAlchemyError, OSError) as error:
            # MLflow tells an address with its password: that is taken out, and its own traceback is not shown.
            raise ServiceError(f"MLflow at {shown(asker.uri)}: {hidden(str(error), asker.uri)}") from None

    return asking


@dataclass(frozen=True)
class Run:
    """One run. A value: it may travel between processes."""

    run_id: str
    experiment_id: str
    key: str


class Tracker:
    """MLflow at one tracking URI.

    Args:
        uri: `sqlite:///…`, `postgresql+psycopg2://…`, or a server's URL.
        artifacts: folder for files of runs when there is no server to choose a place.
    """

    def __init__(self, uri: str, artifacts: Path | None = None) -> None:
        self.uri = uri
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, str], dict[int, int]] = {}
        self._open(artifacts)

    @told
    def _open(self, artifacts: Path | None) -> None:
        if self.uri.startswith("sqlite:///"):
            Path(self.uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        if reason := unreachable(self.uri):
            raise ServiceError(f"MLflow at {shown(self.uri)}: {reason}")
        uri = _without_password(self.uri)
        with _opening(uri):
            self.client = MlflowClient(uri)
            self._experiment = self._find_experiment(artifacts)
        mlflow.set_tracking_uri(uri)  # Traces and external models are logged through MLflow's process-wide state.
        mlflow.set_experiment(experiment_id=self._experiment)

    @told
    def campaign(self, campaign: str, config: Mapping[str, Any], tags: Mapping[str, str]) -> Run:
        """The parent run of a campaign, with its whole configuration as parameters.

        One that is finished stays so: what is evaluated every night belongs to it and does not open it again.
        """
        run = self._find_or_create(campaign, campaign, tags, settled="FINISHED")
        self.log_params(run, flatten(config))
        return run

    @told
    def stage(self, parent: Run, stage: str, tags: Mapping[str, str]) -> Run:
        """The run of one stage, below its campaign's."""
        nested = {**tags, "mlflow.parentRunId": parent.run_id, "longshell.stage": stage}
        return self._find_or_create(run_key(parent.key, stage), stage, nested)

    @told
    def log_step(
        self, run: Run, step: int, metrics: Mapping[str, float | None], timestamp_ms: int, part: str | None = None
    ) -> bool:
        """Logs a committed step, unless it was logged before; says whether it was now.

        A measurement that is absent (None or NaN) is not logged. `part` names what is logged of a step that comes in
        several, as a night does with every suite: each part is logged once.
        """
        mark = COMMITTED if part is None else f"{COMMITTED}.{part}"
        logged = self._steps(run, mark)
        if step in logged:
            return False
        measured = {
            name: float(value) for name, value in metrics.items() if value is not None and not math.isnan(value)
        }
        measured[mark] = float(timestamp_ms)
        batch = [Metric(name, value, timestamp_ms, step) for name, value in measured.items()]
        self.client.log_batch(run.run_id, metrics=batch)
        logged[step] = timestamp_ms
        return True

    @told
    def log_params(self, run: Run, params: Mapping[str, Any]) -> None:
        """Logs those parameters that the run does not have yet. They cannot be changed afterwards."""
        present = self.client.get_run(run.run_id).data.params
        fresh = [Param(name, str(value)[:_PARAM_CHARS]) for name, value in params.items() if name not in present]
        for start in range(0, len(fresh), 100):
            self.client.log_batch(run.run_id, params=fresh[start : start + 100])

    @told
    def log_tags(self, run: Run, tags: Mapping[str, str]) -> None:
        """Sets tags, replacing earlier values."""
        self.client.log_batch(run.run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    @told
    def log_bytes(self, run: Run, path: str, data: bytes) -> None:
        """Keeps a file with the run, e.g. a figure at `figures/gap.png`. The same path is replaced."""
        folder, _, name = path.rpartition("/")
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / name
            file.write_bytes(data)
            self.client.log_artifact(run.run_id, str(file), folder or None)

    @told
    def log_table(self, run: Run, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keeps rows, all of the same columns, as a table that MLflow shows and loads. The same path is replaced."""
        columns = list(rows[0])
        table = {"columns": columns, "data": [[row[column] for column in columns] for row in rows]}
        self.log_bytes(run, path, json.dumps(table).encode())
        tables = json.loads(self.client.get_run(run.run_id).data.tags.get(_TABLES, "[]"))
        others = [entry for entry in tables if entry["path"] != path]
        self.log_tags(run, {_TABLES: json.dumps([*others, {"path": path, "type": "table"}][-_TABLES_SHOWN:])})

    @told
    def log_pool(self, run: Run, name: str, digest: str, uri: str) -> None:
        """Names the pool of tasks as a dataset that went into the run."""
        inputs = self.client.get_run(run.run_id).inputs.dataset_inputs
        if any((item.dataset.name, item.dataset.digest) == (name, digest[:36]) for item in inputs):
            return
        dataset = Dataset(name, digest[:36], source_type="longshell-store", source=json.dumps({"uri": uri}))
        self.client.log_inputs(run.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "pool")])])

    @told
    def end(self, run: Run, *, failed: bool = False) -> None:
        """Marks the run as finished or failed. A later attempt may write to it all the same."""
        self.client.set_terminated(run.run_id, "FAILED" if failed else "FINISHED")

    def _steps(self, run: Run, mark: str) -> dict[int, int]:
        """Steps that carry the mark, with their commit times. Read from MLflow once a process."""
        key = run.run_id, mark
        if key not in self._logged:
            history = self.client.get_metric_history(run.run_id, mark)
            self._logged[key] = {item.step: int(item.value) for item in history}
        return self._logged[key]

    def _find_experiment(self, artifacts: Path | None) -> str:
        if found := self.client.get_experiment_by_name(EXPERIMENT):
            return str(found.experiment_id)
        try:
            return str(self.client.create_experiment(EXPERIMENT, artifacts.as_uri() if artifacts else None))
        except MlflowException:  # Another process made it in this instant.
            if found := self.client.get_experiment_by_name(EXPERIMENT):
                return str(found.experiment_id)
            raise

    def _find_or_create(self, key: str, name: str, tags: Mapping[str, str], settled: str = "RUNNING") -> Run:
        with self._lock:
            found = self._search(key)
            if not found:
                everything = {**tags, KEY: key, "mlflow.runName": name}
                self.client.create_run(self._experiment, tags=everything)
                found = self._search(key)
        first, *others = sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))
        for other in others:  # Two processes created it at once; both agree on the first.
            if other.info.start_time >= first.info.start_time and not other.data.metrics:
                self.client.delete_run(other.info.run_id)
        run = Run(first.info.run_id, self._experiment, key)
        self.log_tags(run, tags)
        if first.info.status not in ("RUNNING", settled):
            self.client.update_run(run.run_id, status="RUNNING")
        return run

    def _search(self, key: str) -> list[Any]:
        return list(self.client.search_runs([self._experiment], f"tags.`{KEY}` = '{key}'"))


def _without_password(uri: str) -> str:
    """The address of a server without who connects, which MLflow is told otherwise: it prints its address."""
    if not uri.startswith("http"):
        return uri
    address, who = anonymous(uri)
    user, _, password = who.partition(":")
    if password:
        os.environ |= {"MLFLOW_TRACKING_USERNAME": unquote(user), "MLFLOW_TRACKING_PASSWORD": unquote(password)}
    return address if password else uri


@contextmanager
def _opening(uri: str) -> Iterator[None]:
    """One process at a time opens a database: two that make its tables at once fail on each other's.

    Of a database server this machine's alone are kept apart: make its tables first, as the MLflow server does.
    """
    if uri.startswith("http"):
        yield
        return
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///"):
        path = Path(tempfile.gettempdir()) / f"longshell-{os.getuid()}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}"
    with path.with_name(f"{path.name}.opening").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as `section.key` rows; lists stay values."""
    rows: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            rows |= flatten(value, f"{prefix}{name}.")
        else:
            rows[prefix + name] = value
    return rows
