"""`python -m components.gateway`: an OpenAI endpoint in front of a sampler, recording trials as token ids.

Prints one JSON line on stdout when it accepts connections: {"ready": true, "url", "model"}. Ends with SIGTERM or
SIGINT. Exit code 2 with one line of explanation when it cannot start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from components.errors import CheckpointError, ConfigError, InfraFault, ServiceError
from components.gateway.app import Routes, serving
from components.gateway.gateway import Gateway
from components.gateway.template import ChatTemplate
from components.sampler import ModelGeometry, SGLangClient
from components.tito import BpeTokenizer


def main() -> int:
    """Serves until it is told to stop."""
    args = _arguments()
    try:
        return asyncio.run(_serve(args))
    except (CheckpointError, ConfigError, InfraFault, ServiceError, OSError) as error:
        print(f"cannot serve: {error}", file=sys.stderr, flush=True)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m components.gateway", description=__doc__)
    parser.add_argument("--sampler", required=True, help="URL of a server that speaks SGLang's native protocol")
    parser.add_argument("--model", type=Path, required=True, help="its Hugging Face folder: shape, tokenizer, template")
    parser.add_argument("--served-model-name", help="what clients ask for; the folder's name by default")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--context", type=int, required=True, help="tokens of prompt and answer")
    parser.add_argument("--request-timeout", type=float, default=600.0, help="seconds a generation may take")
    parser.add_argument("--template-variables", type=json.loads, default={}, help="JSON object for the chat template")
    parser.add_argument("--no-capture", action="store_true", help="do not record routed experts")
    parser.add_argument("--reasoning", action="store_true", help="show what stands before </think> apart from content")
    parser.add_argument("--overrule", action="store_true", help="draw as the trial says, whatever a client asks for")
    parser.add_argument("--open-unknown", action="store_true", help="a request opens the trial that it names")
    return parser.parse_args()


async def _serve(args: argparse.Namespace) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    geometry = ModelGeometry.read(args.model, args.context)
    sampler = SGLangClient(args.sampler, model=geometry, request_timeout_s=args.request_timeout)
    try:
        await sampler.probe(routing=not args.no_capture)
        template = ChatTemplate.load(args.model, BpeTokenizer.load(args.model), variables=args.template_variables)
        gateway = Gateway(
            sampler,
            template,
            model=args.served_model_name or args.model.name,
            context_tokens=args.context,
            capture=not args.no_capture,
            reasoning=args.reasoning,
            overrule=args.overrule,
            open_unknown=args.open_unknown,
        )
        async with serving(Routes(gateway), args.host, args.port) as url:
            print(json.dumps({"ready": True, "url": url, "model": gateway.model}), flush=True)
            await stopped.wait()
    finally:
        await sampler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
