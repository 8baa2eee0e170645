"""`python -m tasks.stack up|down`: the local stack, for people. `worker`: a worker of a Prefect server elsewhere.

The last is for containers: it tells the server of pool, deployments and automations, and becomes the worker.
"""

from __future__ import annotations

import argparse
import os
import sys

from components.errors import ConfigError
from components.naming import shown
from tasks.given import require_given
from tasks.site import Site
from tasks.space import explaining
from tasks.stack import services, settings
from tasks.stack.supervisor import Stack
from tasks.terminal import EXIT_INTERRUPTED, tell

SERVICES = ("prefect", "ray", "mlflow")


def main() -> int:
    """Gives the exit code, 0 or what `tasks.terminal` makes of a failure."""
    parser = argparse.ArgumentParser(prog="python -m tasks.stack", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "worker"])
    command = parser.parse_args().command
    try:
        site = Site.current()
        if command == "worker":
            return _become_worker(site)
        stack = Stack(site, lambda line: print(line, file=sys.stderr, flush=True))
        if command == "down":
            users = ", ".join(map(str, stack.users()))
            stopped = stack.down()
            if users:
                print(f"processes {users} used them: they will fail, and the same commands continue", file=sys.stderr)
            print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")
            return 0
        with explaining(site):
            _up(stack, site)
            print(_links(site))
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:  # The boundary: a person reads one message.
        return tell(error)


def _up(stack: Stack, site: Site) -> None:
    """All that is not given, with the deployments installed; when anything fails, nothing outlives what ran before."""
    from tasks.reconcile import put_in_order
    from tasks.stack.provision import provision

    print("starting the stack (half a minute; longer the first time)", file=sys.stderr, flush=True)
    require_given(site)
    found = stack.running()
    ours = [name for name in SERVICES if name not in site.given]
    stack.up(ours, pin=False)
    try:
        values = settings.environment(site)
        settings.apply(values)
        provision(values)
        put_in_order(site)
        stack.up((*ours, "worker"), pin=True)
    except BaseException:
        if not found:
            stack.down()
        raise


def _become_worker(site: Site) -> int:
    """Replaces this process by the worker, so that a signal of the container's engine reaches it."""
    from tasks.reconcile import put_in_order
    from tasks.stack.provision import provision

    variables = {"prefect": "PREFECT_API_URL", "ray": "LONGSHELL_RAY_JOBS"}
    if absent := [variable for name, variable in variables.items() if name not in site.given]:
        raise ConfigError([f"{name} is not set: a worker alone starts no services" for name in absent], "environment")
    require_given(site)
    site.home.mkdir(parents=True, exist_ok=True)
    values = settings.environment(site)
    settings.apply(values)
    provision(values)
    put_in_order(site)
    argv = services.worker(site).argv
    os.execve(argv[0], argv, {**os.environ, **values})


def _links(site: Site) -> str:
    urls = {name: shown(str(site.service(name))) for name in SERVICES}
    token = "" if "ray" in site.given else f"   (token: {site.ray_token})"
    return "\n".join(
        [
            "",
            f"  Prefect  {urls['prefect'].removesuffix('/api')}",
            f"  MLflow   {urls['mlflow']}",
            f"  Ray      {urls['ray']}{token}",
            "",
            "  trigger a run in the Prefect UI, or: .venv/bin/prefect deployment run campaign/campaign",
            f"  (for the prefect command: export PREFECT_API_URL={urls['prefect']})",
            "  stop everything: make down",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
