"""What a box's first process runs on, whatever its image holds: this Python with the modules that it needs.

It lies in a volume that every box of a backend has read-only, with its own C library and loader, so it works on any
image of this machine's architecture. Invariant: the volume bears its owner's labels before anything is in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from docker.types import Mount

from components.sandbox.docker.engine import Engine
from components.sandbox.docker.profile import TOOLS
from components.sandbox.zygote import relay

REPOSITORY = "longshell/tools"
LABEL = "longshell.cache"
LISTING = """
import sys
sys.path.append(sys.argv[1])
import zygote.relay, encodings.utf_8, encodings.latin_1, encodings.ascii, linecache, json, os
found = {m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
root = os.path.dirname(os.__file__)
found |= {p for name in sys.modules if os.path.isfile(p := f"{root}/{name.replace('.', '/')}.py")}  # replaced on import
print(json.dumps(sorted(found)))
"""
START = """
import sys
sys.path.append(sys.argv[1])
from zygote.relay import main
main()
"""


class Toolkit(NamedTuple):
    """An archive, what names it, and the command that starts a box."""

    archive: bytes
    digest: str
    command: tuple[str, ...]


def _libraries(paths: list[str]) -> dict[str, str]:
    """Shared libraries by the name they are asked for, the loader by its path."""
    said = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^\s+(\S+) => (/\S+) \(", said, re.M))
    loaders = re.findall(r"^\s+(/\S+) \(", said, re.M)
    return {**found, "loader": loaders[0]}


@cache
def toolkit() -> Toolkit:
    """Of this process's own Python."""
    python = os.path.realpath(sys.executable)
    own = Path(relay.__file__).parent
    listed = subprocess.run(
        [python, "-I", "-S", "-c", LISTING, str(own.parent)], capture_output=True, text=True, check=True
    )
    modules = [Path(file) for file in json.loads(listed.stdout)]
    stdlib = Path(os.__file__).parent
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = _libraries([python, *(str(path) for path in modules if path.suffix == ".so")])
    places: dict[str, Path] = {"bin/python3": Path(python)}
    places |= {f"lib/{key}": Path(path) for key, path in libraries.items()}
    for module in modules:
        inner = f"lib/{name}/{module.relative_to(stdlib)}" if module.is_relative_to(stdlib) else f"zygote/{module.name}"
        places[inner] = module
        cached = module.parent / "__pycache__" / f"{module.stem}.{sys.implementation.cache_tag}.pyc"
        if cached.is_file():
            places[f"{Path(inner).parent}/__pycache__/{cached.name}"] = cached
    archive, digest = _archive(places, name)
    command = (f"{TOOLS}/lib/loader", "--library-path", f"{TOOLS}/lib", f"{TOOLS}/bin/python3", "-I", "-S", "-B")
    return Toolkit(archive, digest, (*command, "-c", START, TOOLS))


def _archive(places: dict[str, Path], name: str) -> tuple[bytes, str]:
    data = io.BytesIO()
    content = hashlib.sha256(platform.machine().encode())
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder in ("", "/bin", "/lib", f"/lib/{name}", f"/lib/{name}/lib-dynload", "/zygote"):
            entry = tarfile.TarInfo(f"{TOOLS[1:]}{folder}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for inner, path in sorted(places.items()):
            held = path.read_bytes()
            entry = tarfile.TarInfo(f"{TOOLS[1:]}/{inner}")
            entry.size, entry.mtime = len(held), int(path.stat().st_mtime)  # bytecode is held against its source's time
            entry.mode = 0o755
            content.update(repr((inner, entry.mtime)).encode() + hashlib.sha256(held).digest())
            archive.addfile(entry, io.BytesIO(held))
    return data.getvalue(), content.hexdigest()[:24]


async def fill_volume(engine: Engine, volume: str, labels: dict[str, str]) -> tuple[str, ...]:
    """Make the volume; the command that starts a box with it."""
    kit = await asyncio.to_thread(toolkit)
    image = f"{REPOSITORY}:{kit.digest}"
    if not await engine.call("tools", lambda api: api.images(image)):
        await engine.call(
            "tools",
            lambda api: api.import_image_from_data(
                kit.archive, REPOSITORY, kit.digest, changes=[f"LABEL {LABEL}=tools", 'CMD ["none"]']
            ),
        )
    await engine.call("tools", lambda api: api.create_volume(volume, labels=labels))
    carrier = await engine.call(
        "tools",
        lambda api: api.create_container(
            image,
            labels=labels,
            host_config=api.create_host_config(network_mode="none", mounts=[Mount(TOOLS, volume, type="volume")]),
        ),
    )
    await engine.call("tools", lambda api: api.remove_container(carrier["Id"], force=True))
    return kit.command
