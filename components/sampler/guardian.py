"""`python -m components.sampler.guardian --parent PID --grace-s S COMMAND...`: runs what does not look after itself.

SGLang starts processes of its own and watches nobody. The guardian ties them to the process that asked for them.

Invariant: when stdin closes, the parent dies or a SIGTERM comes, the command and all of its process group end within
`--grace-s`. Should the guardian itself be killed, the kernel kills the command, whose children watch it. The guardian
ends as the command did, by a signal too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys

from components.sampler.lifeline import watch_parent

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the command until it ends or is to end. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.sampler.guardian", description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="end with this process, or when stdin closes")
    parser.add_argument("--grace-s", type=float, required=True, help="between SIGTERM and SIGKILL")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    code = asyncio.run(_guard(args.command, args.parent, args.grace_s))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


async def _guard(command: list[str], parent: int, grace_s: float) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=2, process_group=0, preexec_fn=_die_with_guardian
    )
    watch_parent(loop, parent, stopped.set)
    waiting = [asyncio.ensure_future(child.wait()), asyncio.ensure_future(stopped.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    _signal_group(child.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.wait(), grace_s)
    _signal_group(child.pid, signal.SIGKILL)
    return await child.wait()


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _die_with_guardian() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
