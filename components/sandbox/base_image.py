"""`make image`: a root file system that FROM finds, made by debootstrap or taken out of an archive.

    python -m components.sandbox.base_image --into FOLDER --name debian:trixie-slim [--name ...] --suite trixie
    python -m components.sandbox.base_image --into FOLDER --name debian:trixie-slim --archive root.tar

Needs root: the files of an image have many owners. Nothing is installed on the host: where debootstrap is missing, its
package is fetched and unpacked for this once. Invariant: an image has its names once it is complete, and not before;
the same content is one image, however often it is added.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from components.errors import ConfigError
from components.sandbox.store import BASE_SYSTEMS, BaseImage, ImageStore

PACKAGES = ("ca-certificates", "curl", "git", "less", "procps", "python3", "python3-venv", "tmux", "vim-tiny")
"""What tasks and their verifiers take for granted, and a Debian of the smallest variant lacks."""
KEY_CHARS = 16
DROPPED = ("var/cache/apt/archives", "var/lib/apt/lists", "dev", "proc", "sys", "run", "tmp")
"""Folders of a root file system whose content is no part of an image."""


def debootstrap(target: Path, suite: str, packages: Sequence[str], mirror: str | None) -> None:
    """Make a Debian at `target`.

    Raises:
        ConfigError: it cannot be made; with the end of what was said.
    """
    with tempfile.TemporaryDirectory(prefix="longshell-debootstrap-") as folder:
        environment = dict(os.environ)
        program = shutil.which("debootstrap")
        if program is None:
            program = _fetched(Path(folder))
            environment["DEBOOTSTRAP_DIR"] = f"{folder}/unpacked/usr/share/debootstrap"
        argv = [program, "--variant=minbase", f"--include={','.join(packages)}", suite, str(target)]
        _run([*argv, *([] if mirror is None else [mirror])], environment)


def _fetched(folder: Path) -> str:
    """debootstrap out of its package, for this once."""
    folder.chmod(0o755)
    _run(["apt-get", "-q", "download", "debootstrap"], dict(os.environ), folder)
    (package,) = folder.glob("debootstrap_*.deb")
    _run(["dpkg", "-x", str(package), str(folder / "unpacked")], dict(os.environ))
    return str(folder / "unpacked/usr/sbin/debootstrap")


def _run(argv: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError([f"{argv[0]} is not installed here; import an archive instead (--archive)"]) from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-800:]
        raise ConfigError([f"{' '.join(argv)} exited {done.returncode}: {said}"])


def unpack(archive: Path, target: Path) -> None:
    """A tar of a root file system (`docker export` writes one), compressed or not.

    Raises:
        ConfigError: tar cannot read it.
    """
    target.mkdir()
    _run(["tar", "--extract", "--file", str(archive), "--directory", str(target), "--numeric-owner"], dict(os.environ))


def add(
    store: ImageStore, root: Path, names: Sequence[str], env: Mapping[str, str], files: Mapping[str, Path]
) -> BaseImage:
    """Make an image of a root file system, which is moved away.

    Args:
        files: host files that become part of it, by their absolute paths there, executable where they are.

    Raises:
        ConfigError: a folder that is written to here, or that boxes are laid over, is a link out of it.
    """
    inner = [*DROPPED, *BASE_SYSTEMS, *(path.lstrip("/") for path in files)]
    led_out = [path for path in inner if not (root / path).parent.resolve().is_relative_to(root.resolve())]
    led_out += [name for name in BASE_SYSTEMS if (root / name).is_symlink()]
    if led_out:
        raise ConfigError([f"{path}: a link on its way leads out of the image" for path in led_out])
    for folder in DROPPED:
        _empty(root / folder)
    (root / "tmp").chmod(0o1777)
    for path, source in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        shutil.copyfile(source, place)
        place.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    key = content_digest(root)[:KEY_CHARS]
    with store.naming():
        known = next((base for base in store.bases() if base.key == key), None)
        if known is None:
            return store.add_base(root, names, env, key)
        shutil.rmtree(root)
        return store.rename_base(known, names, env)


def _empty(folder: Path) -> None:
    if folder.is_symlink():  # what it leads to may be the host's
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def content_digest(root: Path) -> str:
    """Of every name, kind, owner, mode, link target and byte; nothing of time."""
    state = hashlib.sha256()
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted([*names, *files]):
            path = Path(folder, name)
            info = path.lstat()
            state.update(repr((str(path.relative_to(root)), info.st_mode, info.st_uid, info.st_gid)).encode())
            if stat.S_ISLNK(info.st_mode):
                state.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as file:
                    state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()


def _pair(text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has no =")
    return left, right


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when the image is there."""
    parser = argparse.ArgumentParser(prog="python -m components.sandbox.base_image", description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, required=True, help="the folder that sandbox.images names")
    parser.add_argument("--name", action="append", required=True, help="what FROM calls it")
    parser.add_argument("--suite", default="trixie", help="Debian release")
    parser.add_argument("--mirror", help="where packages come from; debootstrap's own default otherwise")
    parser.add_argument("--package", action="append", default=[], help="a package more")
    parser.add_argument("--archive", type=Path, help="a tar of a root file system, instead of debootstrap")
    parser.add_argument("--file", type=_pair, action="append", default=[], metavar="PATH=SOURCE", help="a file more")
    parser.add_argument("--env", type=_pair, action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("an image has files of many owners: run this as root", file=sys.stderr)
        return 2
    store = ImageStore(given.into.resolve())
    with store.workplace() as folder:
        root = folder / "root"
        try:
            if given.archive is None:
                debootstrap(root, given.suite, [*PACKAGES, *given.package], given.mirror)
            else:
                unpack(given.archive, root)
            files = {path: Path(source) for path, source in given.file}
            base = add(store, root, given.name, dict(given.env), files)
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
    print(f"{store.folder / 'bases' / base.key}: {', '.join(base.names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
