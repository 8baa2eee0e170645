"""`python -m components.synthesis POOL --rounds 3 --into FOLDER`: longer tasks of those of a pool, each of them run.

    python -m components.synthesis var/pools/train --rounds 3 --tasks 200 --into var/pools/grown
    python -m components.synthesis pools/mine --into pools/grown --seed 2 --json
    python -m components.synthesis pools/mine --into pools/grown --model '{"base_url": "https://host/v1", "model": "m"}'

POOL is a folder of Harbor task directories. Where it has an index with what the gates measured, that is believed;
else its tasks are run first. FOLDER gets the grown tasks and their index: `pool.imported` takes it as it is, beside
POOL. The same command continues one that was killed. Prints one line a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from components.artifacts import LocalStore
from components.config import PoolConfig, SandboxConfig, SynthesisConfig
from components.errors import ConfigError, InfraFault, LongshellError, ServiceError
from components.sandbox import open_backend
from components.synthesis.model import open_proposer
from components.synthesis.report import RoundReport
from components.synthesis.rounds import World, synthesize
from components.synthesis.run import STATE, open_run

EXIT_REFUSED, EXIT_FAULT = 2, 75
FIELDS = SynthesisConfig.model_fields
CONCURRENCY = 8
"""Boxes at once. Gates are bound by the processor; more boxes only wait for each other."""


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every round accepted tasks, 2 when the question makes no sense, 75 when boxes failed."""
    parser = argparse.ArgumentParser(prog="python -m components.synthesis", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pool", type=Path, help="folder of Harbor task directories")
    parser.add_argument("--into", type=Path, required=True, help="folder of the grown tasks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help=f"boxes at once ({CONCURRENCY})")
    parser.add_argument("--json", action="store_true", help="one JSON object a round")
    parser.add_argument("--model", metavar="JSON", type=json.loads, help=f"{FIELDS['model'].description} As in YAML")
    for name, field in FIELDS.items():
        if name == "model":
            continue
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=field.default, help=f"{field.description} ({field.default})")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(_run(arguments))
    except (InfraFault, ServiceError) as fault:
        print(fault, file=sys.stderr)
        return EXIT_FAULT
    except (LongshellError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    try:
        config = SynthesisConfig(**{name: getattr(arguments, name) for name in FIELDS})
    except ValidationError as error:
        problems = [f"--{'.'.join(map(str, each['loc'])).replace('_', '-')}: {each['msg']}" for each in error.errors()]
        raise ConfigError(problems, "arguments") from error
    sandbox = SandboxConfig()
    pool = open_run(arguments.pool, arguments.into, config, arguments.seed)
    async with open_proposer(config, LocalStore(arguments.into / STATE / "model")) as proposer:
        backend = await open_backend(sandbox, arguments.into / STATE / "boxes")
        world = World(backend, sandbox, PoolConfig(), arguments.concurrency, proposer)
        try:
            await synthesize(
                pool,
                arguments.into,
                world,
                config,
                seed=arguments.seed,
                on_round=lambda report: print(_line(report, arguments.json), flush=True),
            )
        finally:
            await backend.close()
            if proposer is not None:
                print(json.dumps(proposer.purse.to_json()), file=sys.stderr)


def _line(report: RoundReport, as_json: bool) -> str:
    return json.dumps(report.row()) if as_json else str(report)


if __name__ == "__main__":
    sys.exit(main())
