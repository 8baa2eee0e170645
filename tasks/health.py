"""`python -m tasks.health`: the campaigns of this installation's store as metrics for Prometheus.

Invariant: every answer is of one reading of the store, at most `FRESH_S` old, however many ask. A store that cannot be
read is the metric `longshell_store_up 0` and a line in the log, never a stale figure; a campaign that cannot be read is
`longshell_campaign_readable 0` and such a line, and hides no other.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from components.artifacts import ArtifactStore, existing_store
from components.diagnostics.health import CampaignHealth, health
from components.errors import LongshellError
from tasks.site import Site
from tasks.terminal import tell

FRESH_S = 15.0
"""Prometheus asks every 15 s or more rarely."""
SEVERITIES = ("ok", "blind", "warn", "red")
USUAL_PORT = 9464

log = logging.getLogger("longshell")


class Health(Collector):
    """What Prometheus reads. `read` gives every campaign by its name."""

    def __init__(self, read: Callable[[], Mapping[str, CampaignHealth | None]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Mapping[str, CampaignHealth | None] | None = None
        self._read_at = float("-inf")

    def describe(self) -> list[Metric]:
        """Nothing: the names are not asked for when it is registered, which would read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        found = self._campaigns()
        yield GaugeMetricFamily(
            "longshell_store_up", "Whether the artifact store could be read", value=float(found is not None)
        )
        if found is not None:
            yield _readable(found)
            known = {name: each for name, each in found.items() if each is not None}
            yield from _campaigns(known)
            yield from _steps(known)
            yield from _jobs(known)

    def _campaigns(self) -> Mapping[str, CampaignHealth | None] | None:
        with self._lock:
            now = self._clock()
            if now - self._read_at >= FRESH_S:
                try:
                    self._seen = self._read()
                except LongshellError as error:
                    log.warning("the store cannot be read: %s", error)
                    self._seen = None
                self._read_at = now
            return self._seen


def _readable(found: Mapping[str, CampaignHealth | None]) -> Metric:
    made = GaugeMetricFamily("longshell_campaign_readable", "Whether its documents could be read", labels=["campaign"])
    for name, each in found.items():
        made.add_metric([name], float(each is not None))
    return made


def _campaigns(found: Mapping[str, CampaignHealth]) -> Iterator[Metric]:
    started = GaugeMetricFamily(
        "longshell_campaign_started_timestamp_seconds", "When its name was taken", labels=["campaign"]
    )
    finished = GaugeMetricFamily("longshell_campaign_finished", "Whether its results are there", labels=["campaign"])
    verdict = GaugeMetricFamily(
        "longshell_campaign_severity", "1 for the severity of the last diagnosis", labels=["campaign", "severity"]
    )
    for name, each in found.items():
        started.add_metric([name], each.started_s)
        finished.add_metric([name], float(each.finished))
        if each.severity is not None:
            for severity in SEVERITIES:
                verdict.add_metric([name, severity], float(severity == each.severity))
    yield from (started, finished, verdict)


def _steps(found: Mapping[str, CampaignHealth]) -> Iterator[Metric]:
    labels = ["campaign", "stage"]
    step = GaugeMetricFamily("longshell_step", "Number of the last committed step", labels=labels)
    committed = GaugeMetricFamily("longshell_step_timestamp_seconds", "When it was committed", labels=labels)
    measured = GaugeMetricFamily(
        "longshell_step_metric", "What was measured of it, by MLflow's names", labels=[*labels, "metric"]
    )
    for name, each in found.items():
        for stage, last in each.stages.items():
            step.add_metric([name, stage], float(last.step))
            committed.add_metric([name, stage], last.committed_s)
            for series, value in last.metrics.items():
                measured.add_metric([name, stage, series], value)
    yield from (step, committed, measured)


def _jobs(found: Mapping[str, CampaignHealth]) -> Iterator[Metric]:
    done = GaugeMetricFamily("longshell_jobs_done", "Jobs that have a result", labels=["campaign"])
    attempts = GaugeMetricFamily(
        "longshell_job_attempts", "Submissions of a job without a result", labels=["campaign", "job"]
    )
    for name, each in found.items():
        done.add_metric([name], float(each.done))
        for job, count in each.attempts.items():
            attempts.add_metric([name, job], float(count))
    yield from (done, attempts)


def registry(open_store: Callable[[], ArtifactStore], clock: Callable[[], float] = time.monotonic) -> CollectorRegistry:
    """The metrics of a store, and no other: not those of Python, which a client library adds by itself."""
    made = CollectorRegistry()
    made.register(Health(lambda: health(open_store()), clock))
    return made


def _store(site: Site) -> ArtifactStore:
    """The store, which a watcher does not make."""
    return existing_store(site.store_url)


def main() -> int:
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m tasks.health", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, default=USUAL_PORT, help=f"port ({USUAL_PORT})")
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        site = Site.current()
        server, thread = start_http_server(
            arguments.port, arguments.host, registry(functools.cache(lambda: _store(site)))
        )
        log.info("http://%s:%d/metrics", arguments.host, server.server_port)
        thread.join()
    except KeyboardInterrupt:
        return 0
    except Exception as error:  # The boundary: a person reads one message.
        return tell(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
