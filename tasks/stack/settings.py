"""Every setting of Prefect, Ray and MLflow that we depart from the default in, with the reason. One place."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from components.cluster import REPOSITORY
from tasks.site import Site

HEARTBEAT_S = 30
"""Prefect's default is 180: a dead flow run would be noticed after many minutes. Its minimum is 30."""
WORK_POOL = "local"

FIXED = {
    # Nothing phones home.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
    # A deployment starts within 2 s of being triggered; the default poll of 10 s is most of a run's latency.
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
    "PREFECT_CLI_PROMPT": "false",
    # Flow results are small references to what is in our store; Prefect keeps none of its own.
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    # MLflow's job runners are eight processes and 0.9 GB that nothing here uses.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # MLflow would ask a server that is away for four minutes, in which nobody follows the job. Flow tasks try again.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # Lines of a job's log carry no colour codes and are not dropped as duplicates.
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray's metrics and usage collectors cost a tenth of a core on a machine of two; its dashboard looks every 15 s.
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "15000",
    # Two cores are shared by many processes: a pool of threads in each makes all of them wait.
    "OMP_NUM_THREADS": "1",
}


def make_token(path: Path) -> None:
    """Makes the Ray token of a state directory on first use, readable by its owner only."""
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(32))
        temporary.rename(path)


def environment(site: Site) -> dict[str, str]:
    """What every process of the stack, and every flow that uses it, has in its environment."""
    local = {"127.0.0.1", "localhost", *os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).split(",")} - {""}
    values = {
        **FIXED,
        "LONGSHELL_HOME": str(site.home),
        "LONGSHELL_STORE": site.store_url,
        "LONGSHELL_JOBS_PACKAGE": site.jobs_package,
        "PREFECT_HOME": str(site.home / "prefect"),
        "PYTHONPATH": str(REPOSITORY),
        "LONGSHELL_REPOSITORY": str(REPOSITORY),
        "NO_PROXY": ",".join(sorted(local)),
        "no_proxy": ",".join(sorted(local)),
    }
    if "ray" not in site.given:  # Whoever gives another one says how it is opened.
        values |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(site.ray_token)}
    if url := site.service("prefect"):
        values["PREFECT_API_URL"] = url
    return values


def apply(values: Mapping[str, str]) -> None:
    """Puts the settings into this process, for Prefect too when it is already imported."""
    import prefect.context

    os.environ.update(values)
    prefect.context.refresh_global_settings_context()
