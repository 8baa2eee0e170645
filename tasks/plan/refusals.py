"""Everything that is wrong with a campaign before it starts: its configuration, its memory, its store, its folders.

Invariant: one problem hides no other, as long as what the other is about can be read. Nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from components.artifacts import ArtifactStore, existing_store, open_store, store_url
from components.config import CampaignConfig, Readable, read, readable, validate
from components.errors import ConfigError, NoSpaceError, NoStoreError, StoreError, TaskError
from components.pool.bucket import SCHEME, require
from tasks.campaign import check_claim, check_model, check_plan
from tasks.site import Site
from tasks.space import full, require_start

PLANNED = frozenset({"model", "trainer", "ppo", "rollout", "harness", "sampler"})
"""Sections that the arithmetic of a campaign's memory reads."""
READ = ("harness.harbor", "sandbox.docker.tls", "pool.imported.")
"""Of the `places`, those that a campaign only reads. Others it makes, finds on the search path, or can do without."""
HERE = "this machine"


def require_sound(path: str, overrides: Sequence[str], site: Site) -> CampaignConfig:
    """The configuration of a campaign that can start here.

    Raises:
        ConfigError: lists everything that is wrong with it.
    """
    config, problems, source = refusals(path, overrides, site)
    if config is not None and not problems:
        problems = _refused(lambda: check_model(config))
    if config is None or problems:
        raise ConfigError(problems, source)
    return config


def refusals(path: str, overrides: Sequence[str], site: Site) -> tuple[CampaignConfig | None, list[str], str]:
    """A configuration when it is sound by itself; what forbids to run it at `site`; and what names it in a message.

    Folders that only the cluster's machines need are not asked for (`places`).
    """
    config, found, source = None, None, path
    problems: list[str] = []
    try:
        document, source = read(path, overrides)
        found = readable(document)
        config = validate(document, source)
    except ConfigError as error:
        problems += error.problems
    problems += [] if found is None else _refused(lambda: _fits(found, site))
    problems += _unmakeable(f"state directory {site.home}", site.home, "LONGSHELL_HOME")
    problems += _refused(lambda: _store(site, config))
    problems += [] if config is None else _buckets(config)
    return config, problems, source


def store_so_far(site: Site) -> ArtifactStore | None:
    """The artifact store, if there is one: a folder is not made.

    Raises:
        ConfigError, StoreError: as `existing_store`, but for a store that is not there.
    """
    try:
        return existing_store(site.store_url)
    except NoStoreError:
        return None


def places(config: CampaignConfig) -> Mapping[str, str]:
    """Folders and addresses that must be there where jobs run, by the key that names them."""
    imported, suites = config.pool.imported, config.evaluation.suites
    teacher = None if config.sft.rejection is None else config.sft.rejection.teacher
    named = {
        "model.path": config.model.path,
        "publish.folder": config.publish.folder,
        "harness.harbor": config.harness.harbor,
        "sandbox.images": config.sandbox.images,
        "sandbox.docker.tls": config.sandbox.docker.tls,
        "sampler.sglang.python": config.sampler.sglang.python if config.sampler.sglang else None,
        "evaluation.harbor.venv": config.evaluation.harbor.venv,
        "sft.rejection.teacher": None if teacher is None else teacher.base_url,
        **{f"evaluation.suites.{suite.name}": suite.path for suite in suites},
    }
    if imported is not None:
        sources = {"train": imported.train, "heldout": imported.heldout, "benchmarks": imported.benchmarks}
        for name, paths in sources.items():
            named |= {f"pool.imported.{name}.{index}": path for index, path in enumerate(paths)}
    return {key: path for key, path in named.items() if path is not None}


def keys(config: CampaignConfig) -> Mapping[str, str]:
    """Environment variables that must be set where jobs run, by the key of the configuration that names them."""
    audit, rejection = config.pool.audit, config.sft.rejection
    endpoints = {
        "pool.audit.judge": None if audit is None else audit.judge,
        "sft.rejection.teacher": None if rejection is None else rejection.teacher,
    }
    asked = {key: each.api_key_env for key, each in endpoints.items() if each is not None}
    return {f"{key}.api_key_env": name for key, name in asked.items() if name is not None}


def require_ready(config: CampaignConfig, site: Site) -> None:
    """Refuses to begin a campaign on a machine that lacks what it will need, perhaps days later.

    Raises:
        ConfigError: lists everything that is lacking.
    """
    if problems := unready(config, site):
        raise ConfigError(problems, HERE)


def unready(config: CampaignConfig, site: Site) -> list[str]:
    """What this machine lacks to begin a campaign: room on its disks; where Ray is ours, folders; keys of endpoints,
    where a Ray would start that hands this environment to its jobs.
    """
    problems = [str(error) for error in (full(site), _room(site)) if error is not None]
    if "ray" not in site.given:
        needed = {key: path for key, path in places(config).items() if key.startswith(READ) and "://" not in path}
        problems += _refused(lambda: check_model(config))
        problems += [f"{key}: there is no {path}" for key, path in needed.items() if not Path(path).exists()]
    if site.service("ray") is None:
        unset = {key: name for key, name in keys(config).items() if not os.environ.get(name)}
        advice = "set it, or name null for an endpoint that asks for none"
        problems += [f"{key}: the environment variable {name} is not set; {advice}" for key, name in unset.items()]
    return problems


def _room(site: Site) -> NoSpaceError | None:
    """Whether services that are not there yet would have too little."""
    try:
        if None in (site.service("prefect"), site.service("ray")):
            require_start(site)
    except NoSpaceError as error:
        return error
    return None


def _fits(found: Readable, site: Site) -> None:
    if PLANNED.isdisjoint(found.unreadable):
        check_plan(found.config, site)


def _unmakeable(what: str, folder: Path, key: str) -> Iterator[str]:
    """Why a folder that is there or will be made cannot be written."""
    advice = f"set {key} to a folder that can"
    above = next(each for each in (folder, *folder.parents) if each.exists())
    if not above.is_dir():
        yield f"{what} cannot be made ({above} is a file); {advice}"
    elif not os.access(above, os.W_OK | os.X_OK):
        yield f"{what} cannot be written (no permission in {above}); {advice}"


def _store(site: Site, config: CampaignConfig | None) -> None:
    url = store_url(site.store_url)
    if store_so_far(site) is None:
        found = list(_unmakeable(f"artifact store {url}", Path(url), "LONGSHELL_STORE"))
        if found and site.home not in Path(url).parents:  # Below the state directory it is told already.
            raise ConfigError(found)
        return
    store = open_store(url)  # It refuses one that cannot be written.
    if config is not None:
        check_claim(config, store)


def _buckets(config: CampaignConfig) -> Iterator[str]:
    """Those that tasks are imported from."""
    for key, path in places(config).items():
        if path.startswith(SCHEME):
            yield from _refused(partial(require, path), key)


def _refused(check: Callable[[], None], key: str = "LONGSHELL_STORE") -> list[str]:
    """What a check refuses; what a store refuses is told with the `key` that names it."""
    try:
        check()
    except ConfigError as error:
        return list(error.problems)
    except (StoreError, TaskError) as error:
        return [f"{key}: {error}"]
    return []
