"""`python -m components.curation.quality`: what a judge says of the tasks of a folder, without executing them.

    python -m components.curation.quality pools/mine --base-url https://host/v1 --model judge-1 --cache var/judged
    python -m components.curation.quality pools/mine --base-url http://127.0.0.1:8000/v1 --model m --no-key --json

Prints one line a task, then the counts and what was asked. The key is read from the environment (`--key-from`); the
answers are kept under `--cache`, so that the same question is paid for once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from components.artifacts import LocalStore
from components.config import AuditConfig
from components.curation.endpoint import Endpoint
from components.curation.quality.asking import Purse
from components.curation.quality.audit import Subject, assess, counts
from components.curation.quality.verdict import Assessment, Verdict
from components.errors import LongshellError, TaskError
from components.pool import load_task

EXIT_FOUND, EXIT_REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every task is accepted, 1 when some are not, 2 when the question makes no sense or is not answered."""
    arguments = _parser().parse_args(argv)
    try:
        return _report(arguments)
    except (LongshellError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m components.curation.quality", description=about)
    parser.add_argument("pool", type=Path, help="folder of Harbor task directories")
    parser.add_argument("--base-url", required=True, help="of an OpenAI-compatible endpoint, such as https://host/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-from", default="JUDGE_API_KEY", help="environment variable that holds the key")
    parser.add_argument("--no-key", action="store_true", help="the endpoint asks for none")
    parser.add_argument("--samples", type=int, default=3, help="opinions a task, an odd number (3)")
    parser.add_argument("--concurrency", type=int, default=8, help="tasks at once (8)")
    parser.add_argument("--prices", type=float, nargs=2, metavar=("IN", "OUT"), help="US dollars a million tokens")
    parser.add_argument("--budget", type=float, help="US dollars past which nothing more is asked")
    parser.add_argument("--cache", type=Path, default=Path("var/judged"), help="where answers are kept (var/judged)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _report(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    tasks = sorted(path.parent for path in arguments.pool.glob("*/task.toml"))
    if not tasks:
        raise TaskError(str(arguments.pool), ["has no task: no */task.toml"])
    subjects = [Subject(load_task(task), None) for task in tasks]
    found, purse = asyncio.run(_audit(subjects, config, LocalStore(arguments.cache)))
    if arguments.json:
        document = {"tasks": [each.to_json() for each in found], "counts": counts(found), "asked": purse.to_json()}
        print(json.dumps(document, indent=1))
    else:
        for each in found:
            score = "" if each.score is None else f" {each.score:.3f}"
            print(f"{each.task_id}: {each.verdict}{score}" + (f": {each.reason}" if each.reason else ""))
        print(json.dumps({**counts(found), **purse.to_json()}))
    return 0 if all(each.verdict is Verdict.ACCEPTED for each in found) else EXIT_FOUND


def _config(arguments: argparse.Namespace) -> AuditConfig:
    prices = arguments.prices or (None, None)
    judge = {
        "base_url": arguments.base_url,
        "model": arguments.model,
        "api_key_env": None if arguments.no_key else arguments.key_from,
        "samples": arguments.samples,
        "concurrency": arguments.concurrency,
        "input_price": prices[0],
        "output_price": prices[1],
        "budget": arguments.budget,
    }
    return AuditConfig.model_validate({"judge": judge})


async def _audit(subjects: Sequence[Subject], config: AuditConfig, store: LocalStore) -> tuple[list[Assessment], Purse]:
    purse = Purse(config.judge)
    async with Endpoint(config.judge) as endpoint:
        return await assess(subjects, endpoint, store, purse, config), purse


if __name__ == "__main__":
    sys.exit(main())
