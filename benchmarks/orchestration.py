"""What orchestration costs a stage: a no-op stage through the Ray Jobs API, from submission to its result.

Of that, almost all is Ray's: its supervisor is a Python process that imports Ray twice before it starts the job. The
first submission to a new head is slower (the head connects to itself) and given apart.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe
from components.cluster import JobSpec
from tasks.site import Site
from tasks.stack import ports
from tasks.stack.supervisor import Stack

REPETITIONS = 7


def main() -> None:
    """Prints {"overhead_s", "first_s", …}."""
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="lsb-") as home:
        free = {name: ports.any_free() for name in ports.USUAL}
        site = Site(Path(home), f"{home}/store", f"sqlite:///{home}/mlflow.db", "components.jobs", ports=free)
        with Stack(site, lambda line: None).session(["ray"]):
            seconds = [_once(site, index) for index in range(REPETITIONS + 1)]
    first, *rest = seconds
    figures = {
        "overhead_s": round(statistics.median(rest), 2),
        "overhead_max_s": round(max(rest), 2),
        "first_s": round(first, 2),
        "repetitions": REPETITIONS,
        "machine": machine,
    }
    print(json.dumps(figures))


def _once(site: Site, index: int) -> float:
    store = site.store()
    cluster = site.cluster(store)
    spec = JobSpec("noop", "benchmark", index, {}, {})
    started = time.monotonic()
    cluster.follow(spec, cluster.submit(spec, {}).id, lambda line: None, lambda: None)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
