"""A plan for people to read: refusals, or every job with what it runs, where, and what it leaves."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from components import naming
from components.artifacts import ArtifactStore, address_of, store_url
from components.cluster import REPOSITORY, request
from components.config import CampaignConfig
from components.errors import ConfigError
from components.jobs import actors
from components.planner import ModelShape, Plan, assess, capacity, storage
from components.sampler.command import Place, server_command
from components.sampler.fleet import Serving
from components.sampler.launch import LOCAL
from tasks.campaign import campaign_name
from tasks.given import away
from tasks.plan.course import OF_A_JOB, OF_THE_CAMPAIGN, Foreseen, course
from tasks.plan.refusals import HERE, keys, places, refusals, store_so_far, unready
from tasks.site import Site
from tasks.stack.supervisor import recorded
from tasks.summary import finished

EXIT_REFUSED = 2
ANY_PORT = 0
"""Stands for a port that is chosen when the server starts."""


def tell_plan(path: str, overrides: Sequence[str], site: Site) -> int:
    """Prints the plan, or everything that forbids it; 0 when the configuration can be run, 2 when not.

    What this machine lacks to start it, such as the model of a cluster, is told after the plan and is no fault of it.
    """
    config, problems, source = refusals(path, overrides, site)
    if config is None or problems:
        print(ConfigError(problems, source), file=sys.stderr)
        return EXIT_REFUSED
    lines, store = list(plan_lines(config, site, source)), store_so_far(site)
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # Who reads has read enough; Python would tell of it once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    lacking = [] if store is not None and finished(config, store) else [*unready(config, site), *away(site)]
    if lacking:
        print(f"\nA start from here would be refused. {ConfigError(lacking, HERE)}", file=sys.stderr)
    return 0


def plan_lines(config: CampaignConfig, site: Site, source: str) -> Iterator[str]:
    """The plan of a sound configuration."""
    name, store, url = campaign_name(config), store_so_far(site), store_url(site.store_url)
    yield f"plan of campaign {name} ({source}). Nothing was started and nothing was written."
    jobs = course(config)
    done = 0 if store is None else sum(_is_done(store, config, job) for job in jobs if job.exact)
    yield f"\nJOBS: {len(jobs)}, in the order of their submission" + (f"; {done} of them are done already" * bool(done))
    if config.model.path is not None:
        yield f"  base: no job; {config.model.path} is copied to {naming.imported_key(name)}"
    told, root = set[str](), naming.campaign_key(name)
    for job in jobs:
        yield from _job(config, site, store, job)
        yield from (
            f"    keeps  {address_of(url, root)}{key.removeprefix(root)}" for key in job.keeps if key not in told
        )
        told |= {*job.keeps}
    yield from ("", "RAY", *(f"  {line}" for line in _ray(config, site)))
    yield from ("", "SAMPLERS", *(f"  {line}" for line in _samplers(config, site, jobs)))
    yield from ("", "TRAINER", *(f"  {line}" for line in _trainer(config)))
    yield from ("", "BYTES", *(f"  {line}" for line in _bytes(config, site)))
    yield from ("", "RECORDS", *(f"  {line}" for line in _records(config, site, jobs)))
    yield from ("", "MUST BE THERE, on the machines that jobs run on", *(f"  {line}" for line in _places(config)))


def _is_done(store: ArtifactStore, config: CampaignConfig, job: Foreseen) -> bool:
    return store.exists(job.spec(config).key("result.json"))


def _job(config: CampaignConfig, site: Site, store: ArtifactStore | None, job: Foreseen) -> Iterator[str]:
    url, marks = store_url(site.store_url), []
    if job.beside:
        marks.append("beside what follows")
    if store is not None and job.exact and _is_done(store, config, job):
        marks.append("done already: its result is reused")
    yield f"  {job.task}: {job.submission_id(config)}" + (f"  ({', '.join(marks)})" if marks else "")
    if job.exact:
        yield f"    runs   {request(job.spec(config), url, site.jobs_package).entrypoint}"
    else:
        yield f"    runs   {site.jobs_package}.{job.ask.stage}; its inputs are what the jobs before it measured"
    if (steps := job.ask.steps) is not None:
        first = int(job.ask.inputs["first_step"])
        yield f"    steps  {first} to {first + steps - 1}"
    for key in job.leaves:
        yield f"    leaves {address_of(url, key)}"


def _ray(config: CampaignConfig, site: Site) -> Iterator[str]:
    yield f"cluster: {_service(site, 'ray', 'a head node')}"
    yield f"a job's driver: on the head node, 0 CPUs, 0 GPUs; environment {_environment(config, site)}"
    yield f"the rollout actor of a leg and of the warm-up: beside the driver, {_resources(actors.ROLLOUTS)}"
    if config.sampler.placement == "ray":
        yield f"each of {config.sampler.members} samplers: {_resources(actors.replica(config.sampler))}, on any node"
    if config.rollout.per_node is not None:
        yield f"on every node: {_resources(actors.NODE_PLACE)}, for at most {config.rollout.per_node} sandboxes"


def _service(site: Site, name: str, kind: str) -> str:
    """Where a service is: given, running, or started by the campaign."""
    if name in site.given:
        return naming.shown(site.given[name])
    record = recorded(site)
    stays = record is not None and record.pinned
    if record is not None and record.alive(name):
        until = "which stays (`make ui`)" if stays else "which a campaign has started and its last user stops"
        return f"{record.services[name]['url']}, {until}"
    return f"{kind} that is started here, and {'stays with what `make ui` started' if stays else 'stopped again'}"


def _environment(config: CampaignConfig, site: Site) -> str:
    asked = request(course(config)[0].spec(config), store_url(site.store_url), site.jobs_package)
    return " ".join(f"{name}={value}" for name, value in asked.environment.items())


def _resources(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _samplers(config: CampaignConfig, site: Site, jobs: Sequence[Foreseen]) -> Iterator[str]:
    sampler = config.sampler
    if sampler.urls:
        yield f"given, none is started: {', '.join(sampler.urls)}"
        return
    where = {"job": "on the job's machine", "ray": "wherever Ray has their GPUs"}[sampler.placement]
    yield f"{sampler.replicas} of each job that draws, {where}; port {ANY_PORT} is chosen at the start"
    if config.harness.prompt_style != "harbor" and config.evaluation.harness == "harbor":
        yield "evaluations: behind the gateway, for a real Harbor"
    told: set[bool] = set()
    for job in jobs:
        if job.serves is None or job.captures in told:
            continue
        told.add(job.captures)
        seed = config.sampler_seed(job.ask.stage, job.ask.index)
        serving = Serving(sampler, Path(f"<{job.serves}>"), seed, job.captures, Path())
        place = Place("<node>" if sampler.placement == "ray" else LOCAL, ANY_PORT, ANY_PORT, serving.seed_of(0, 1))
        command = server_command(sampler, serving.checkpoint, weight_version=0, place=place, routing=job.captures)
        seeds = ", ".join(str(serving.seed_of(replica, 1)) for replica in range(sampler.replicas))
        yield f"{job.task}: {shlex.join(command)}"
        yield f"  seeds of its replicas: {seeds}"
    yield f"new weights: publish.method {config.publish.method}, within {config.publish.timeout_s:g} s"


def _trainer(config: CampaignConfig) -> Iterator[str]:
    trainer, layout = config.trainer, config.trainer.layout
    sizes = f"tp {layout.tp}, pp {layout.pp}, cp {layout.cp}, dp {layout.dp}, ep {layout.ep}"
    yield f"{layout.world} process{'es' * (layout.world > 1)} on the job's machine: {sizes}"
    yield (
        f"micro-batches of {trainer.micro_batch_tokens:,} tokens, dispatcher {trainer.dispatcher}, recompute "
        f"{trainer.recompute}, distributed optimizer {'on' if trainer.distributed_optimizer else 'off'}"
    )
    kernels = [name for name, used in trainer.kernels.model_dump().items() if used]
    yield f"kernels: {', '.join(kernels) or 'our own'}; the router is never fused, since routing is replayed"


def _bytes(config: CampaignConfig, site: Site) -> Iterator[str]:
    shape, layout = ModelShape.of(config.model), config.trainer.layout
    memory_gib = config.trainer.device_memory_gib
    if memory_gib is not None or "ray" not in site.given:
        yield f"memory, as the campaign is held against it: {assess(config).explain()}"
    else:
        yield "memory: the jobs ask the machines of the given cluster"
    if memory_gib is not None:
        report = capacity(Plan(layout, memory_gib), shape, config.trainer.micro_batch_tokens)
        yield f"memory of the paper's trainer (Eq 21): {report.explain()}"
        gpus = 0 if config.sampler.sglang is None else config.sampler.sglang.tp * config.sampler.members
        if gpus:
            yield (
                f"split (Eq 22): {gpus} devices generate and {layout.world} train; best where generating a step's "
                f"batch takes {gpus / layout.world:.2f} times the device-time of its update"
            )
    yield f"store {store_url(site.store_url)}: {storage(config).explain()}"
    yield f"routing: {shape.routing_bytes_per_token():,} B a token"


def _records(config: CampaignConfig, site: Site, jobs: Sequence[Foreseen]) -> Iterator[str]:
    name = campaign_name(config)
    yield f"state directory: {site.home}"
    yield f"store: {address_of(store_url(site.store_url), naming.campaign_key(name))}"
    yield f"  beside what its jobs leave: {', '.join(OF_THE_CAMPAIGN)}; of a job: jobs/<job>/{{{','.join(OF_A_JOB)}}}"
    stages = dict.fromkeys(job.ask.stage for job in jobs)
    runs = [name, *(naming.run_key(name, stage) for stage in stages)]
    model = naming.registered_model(name)
    yield f"MLflow {naming.shown(site.tracking_uri)}: experiment {naming.EXPERIMENT}, registered model {model}"
    yield f"  runs (tag longshell.key): {', '.join(runs)}"
    yield f"Prefect {_service(site, 'prefect', 'a server')}: flow run {name} of flow campaign"
    yield f"  deployments of it (`make ui`): {', '.join(_deployments('flows/campaign.py:campaign')) or 'none'}"


def _deployments(entrypoint: str) -> list[str]:
    document = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    flow = entrypoint.rpartition(":")[2]
    return [f"{flow}/{each['name']}" for each in document["deployments"] if each["entrypoint"] == entrypoint]


def _places(config: CampaignConfig) -> Iterator[str]:
    found = places(config)
    for key, path in found.items():
        here = "" if "://" in path else (" (is here)" if Path(path).exists() else " (is not here)")
        yield f"{key}: {path}{here}"
    for key, name in keys(config).items():
        yield f"{key}: the environment variable {name}{' (is set here)' if os.environ.get(name) else ''}"
    if not found and not keys(config):
        yield "nothing beyond this repository"
