"""A root file system of a few programs of this machine: an image for tests that have none and shall not fetch one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from components.sandbox.base_image import add
from components.sandbox.store import BaseImage, ImageStore

PROGRAMS = (
    "bash", "cat", "chmod", "chown", "cp", "env", "grep", "head", "id", "ln", "ls", "mkdir", "mv", "readlink", "rm",
    "seq", "sleep", "stat", "tar", "touch", "true", "wc",
)  # fmt: skip
NAME = "longshell/small:1"
USERS = "root:x:0:0:root:/root:/bin/bash\nworker:x:1000:1000::/home/worker:/bin/bash\n"
GROUPS = "root:x:0:\nworker:x:1000:\nextra:x:2000:worker\n"


def make_root(root: Path) -> Path:
    """/usr with the programs, the links of a merged system, /etc with two users, records of a package manager."""
    (root / "usr" / "bin").mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    paths = [found for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    listed = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
    for library in set(re.findall(r"(/\S+) \(0x", listed)):
        place = root / "usr" / library.removeprefix("/usr").lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    for path in paths:
        shutil.copy(path, root / "usr" / "bin")
    (root / "usr" / "bin" / "sh").symlink_to("bash")
    for folder in ("etc", "root", "home/worker", "app/given", "var/lib/dpkg", "opt/removed"):
        (root / folder).mkdir(parents=True)
    (root / "etc" / "passwd").write_text(USERS)
    (root / "etc" / "group").write_text(GROUPS)
    (root / "var" / "lib" / "dpkg" / "status").write_text("Package: image\n")
    (root / "opt" / "removed" / "of-the-image").write_text("x\n")
    return root


def small_base(store: ImageStore, scratch: Path) -> BaseImage:
    """The image, named NAME in `store`."""
    return add(store, make_root(scratch / "root"), [NAME], {"OF_IMAGE": "yes"}, {})
