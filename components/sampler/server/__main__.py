"""`python -m components.sampler.server`: serves a checkpoint folder.

Prints one JSON line on stdout when it accepts connections: {"ready": true, "host", "port", "pid"}. Everything else goes
to stderr. Exit code 2 with one line of explanation when it cannot start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from aiohttp import web
from torch import Tensor

from components.errors import CheckpointError
from components.sampler.engine import DTYPES, Weights, build_weights, load_weights, open_engine
from components.sampler.lifeline import watch_parent
from components.sampler.server.app import Service
from components.sampler.server.driver import Driver

_LOG = logging.getLogger("sampler.server")


def main() -> int:
    """Serves until it is told to stop."""
    args = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(args.threads)
    try:
        listening = _listen(args.host, args.port)
        service = _service(args)
    except (CheckpointError, OSError) as error:
        print(f"cannot serve: {error}", file=sys.stderr, flush=True)
        return 2
    return asyncio.run(_serve(service, listening, args.parent))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m components.sampler.server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of a Qwen3-MoE")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--slots", type=int, default=64, help="sequences held at once")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a sequence, prompt and answer")
    parser.add_argument("--prefill-tokens", type=int, default=512, help="prompt tokens computed a step")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--router-dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weight-version", default="0")
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    parser.add_argument("--parent", type=int, help="end with this process, or when stdin closes")
    return parser.parse_args()


def _listen(host: str, port: int) -> socket.socket:
    """Binds first: an occupied port is known before a model is loaded."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening


def _service(args: argparse.Namespace) -> Service:
    engine = open_engine(
        args.model,
        slots=args.slots,
        context=args.context,
        dtype=args.dtype,
        router_dtype=args.router_dtype,
        prefill_tokens=args.prefill_tokens,
        routing=args.enable_return_routed_experts,
        seed=args.seed,
        version=args.weight_version,
    )

    dtypes = DTYPES[args.dtype], DTYPES[args.router_dtype]

    def read(folder: Path) -> Weights:
        return load_weights(folder, engine.arch, *dtypes)

    def build(tensors: Mapping[str, Tensor], source: str) -> Weights:
        return build_weights(tensors, engine.arch, *dtypes, source=source)

    settings = {
        "context_length": args.context,
        "dtype": args.dtype,
        "router_dtype": args.router_dtype,
        "max_running_requests": args.slots,
        "enable_return_routed_experts": args.enable_return_routed_experts,
        "random_seed": args.seed,
    }
    return Service(Driver(engine), str(args.model), read, build, settings)


async def _serve(service: Service, listening: socket.socket, parent: int | None) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if parent is not None:
        watch_parent(loop, parent, stopped.set)
    # A client that hangs up cancels its handler, which aborts its request.
    runner = web.AppRunner(service.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening, backlog=1024, shutdown_timeout=1.0).start()
    host, port = listening.getsockname()[:2]
    print(json.dumps({"ready": True, "host": host, "port": port, "pid": os.getpid()}), flush=True)
    _LOG.info("serving %s on %s:%d", service.model_path, host, port)
    driving = asyncio.create_task(service.driver.run())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({driving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if driving.done():
        _LOG.critical("the engine failed", exc_info=driving.exception())
        # Open requests have no answer to wait for: hanging up tells every client at once.
        os._exit(1)
    driving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await driving
    await runner.cleanup()
    return 0


if __name__ == "__main__":
    sys.exit(main())
