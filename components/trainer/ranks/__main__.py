"""One rank: `python -m components.trainer.ranks SOCKET PARENT RANK COUNT STORE TIMEOUT_S`, started by a pool.

Invariant: it ends when its pool closes the connection, and within a moment when its parent dies, also in the middle of
a collective.
"""

from __future__ import annotations

import datetime
import os
import pickle
import select
import socket
import sys
import threading
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from components.trainer.ranks import wire
from components.trainer.ranks.pool import Answer


def main() -> None:
    """Joins the others, then answers calls until the connection is closed."""
    descriptor, parent, rank, count = (int(argument) for argument in sys.argv[1:5])
    store, timeout_s = sys.argv[5], float(sys.argv[6])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    warnings.filterwarnings("ignore", category=UserWarning, module="megatron")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        store=FileStore(store, count),
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    stage: dict[str, Any] = {}
    with socket.socket(fileno=descriptor) as sock:
        while True:
            try:
                function, args, kwargs = wire.receive(sock)
                file = wire.pack(_answer(stage, function, args, kwargs))
                wire.send(sock, file)
                os.close(file)
            except wire.Gone:
                break
    sys.stdout.flush()
    os._exit(0)  # others may be gone already: no farewell through the process group


def _answer(stage: dict[str, Any], function: Any, args: Any, kwargs: Any) -> Answer:
    """The boundary of a rank: what a call raises is logged here, and raised again by the pool."""
    try:
        return Answer(value=function(stage, *args, **kwargs))
    except Exception as error:
        traceback.print_exc()
        return Answer(error=_portable(error))


def _portable(error: Exception) -> Exception:
    """The error as it can travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a foreign class raises: its words travel without it
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with(parent: int) -> None:
    """Waits for the end of the process that started this one, and follows it."""
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() == parent:
        select.select([watched], [], [])
    os._exit(1)


if __name__ == "__main__":
    main()
