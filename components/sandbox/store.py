"""Root file systems and layers on disk: what FROM names, what was built over it, what was saved of a box.

Layout of the folder, of which only its owner may enter `bases` and `layers`: `bases/<key>/` holds `root/`, a whole
root file system, and `image.json`, its names and its environment; `layers/<key>/` holds `layer.json`, the base and the
layers below it, and the folders that an overlay lies over those of the base: `usr`, `etc` and others of the system,
and `root` for everything else. Owners are those that a box sees, and so are set-uid bits: a user of this machine who
could enter would run as root what a box has written.

Invariants: what stands under its name is complete (it is renamed there, after a sync); a layer is made, and removed,
by one process at a time, under a lock that ends with that process; what a killed one left goes with the next `sweep`.
A layer that a box is laid over is held, by a lock that ends with the box's process; `collect` removes none that is.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from components.sandbox.zygote import kernel, trees

BASE_SYSTEMS = ("usr", "etc")
TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
LOCK_POLL_S = 0.05
WORKPLACE = ".making-"
YOUNG_S = 60.0
"""A workplace that is younger may not have been locked yet."""
RECENT_S = 600.0
"""A layer that was asked for so lately is not collected: whoever asked may not have laid a box over it yet."""
SAVED, BASE = "snapshot-", "base-"
"""How layers begin that were saved, and those that only these need: they are kept until they are forgotten."""
PRIVATE = 0o700
KEPT_ATTRIBUTES = ("overlay.opaque", "overlay.redirect")


@dataclass(frozen=True)
class BaseImage:
    """A root file system. `systems` are folders in its root that views show pristine, `links` are links there."""

    key: str
    names: tuple[str, ...]
    env: Mapping[str, str]
    systems: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Stack:
    """What a box is laid over: layers, the uppermost first, over a base or, with None, over the host's userland."""

    base: BaseImage | None = None
    layers: tuple[str, ...] = ()

    def order(self) -> dict[str, Any]:
        """For the zygote: paths below the folder of images."""
        layers = [f"layers/{layer}" for layer in self.layers]
        if self.base is None:
            return {"base": None, "layers": layers}
        return {
            "base": f"bases/{self.base.key}/root",
            "layers": layers,
            "systems": list(self.base.systems),
            "links": [list(link) for link in self.base.links],
        }


@dataclass
class _Hold:
    """A shared lock on a layer or a base, and how many boxes of this process lie over it."""

    lock: int
    users: int = 0


class ImageStore:
    """One folder of images. Several processes may use it at once.

    Args:
        most_bytes: what built layers may take before the longest unused are collected; None for whatever there is.

    Raises:
        PermissionError: it is another user's.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        (folder / "locks").mkdir(parents=True, exist_ok=True, mode=0o755)
        self.private = (folder / "bases", folder / "layers")
        """What only its owner may enter."""
        for place in self.private:
            place.mkdir(exist_ok=True, mode=PRIVATE)
            if stat.S_IMODE(place.stat().st_mode) != PRIVATE:
                place.chmod(PRIVATE)
            if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):  # or it would look empty
                raise PermissionError(errno.EACCES, "only its owner may enter it", str(place))
        self._held: dict[Path, _Hold] = {}

    def bases(self) -> Iterator[BaseImage]:
        """Every base, in the order of their keys."""
        for path in sorted((self.folder / "bases").glob("[!.]*/image.json")):
            try:
                yield _read_base(path)
            except FileNotFoundError:  # it has been removed meanwhile
                continue

    def base(self, name: str) -> BaseImage:
        """The base that FROM calls `name`; without a tag it is `latest`.

        Raises:
            LookupError: there is none; says which there are.
        """
        wanted = _tagged(name)
        known: list[str] = []
        for base in self.bases():
            if wanted in base.names:
                return base
            known += base.names
        raise LookupError(f"no image of {self.folder} is called {wanted} ({', '.join(sorted(known)) or 'it has none'})")

    @contextmanager
    def workplace(self) -> Iterator[Path]:
        """An empty folder on the store's file system, for who makes a base; its content goes with its maker."""
        with tempfile.TemporaryDirectory(prefix=WORKPLACE, dir=self.folder) as folder:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _try_lock(held)
                yield Path(folder)
            finally:
                os.close(held)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Hold the right to add bases and to give them names; waits for whoever has it."""
        lock = os.open(self.folder / "bases", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def add_base(self, root: Path, names: Sequence[str], env: Mapping[str, str], key: str) -> BaseImage:
        """Take over a root file system: a folder on the same file system as the store, which is moved here.

        Names that other images have are theirs no longer. To be called while `naming`.
        """
        links = []
        systems = list(BASE_SYSTEMS)
        for name in BASE_SYSTEMS:
            (root / name).mkdir(exist_ok=True)
        for name in TOP_FOLDERS:
            place = root / name
            if place.is_symlink():
                links.append((name, os.readlink(place)))
            elif place.is_dir():
                systems.append(name)
        place = self._base(key)
        trees.remove(place)  # of one who was killed before it had a name
        place.mkdir(mode=0o755)
        root.rename(place / "root")
        _sync(place)
        return self.rename_base(BaseImage(key, (), {}, tuple(systems), tuple(links)), names, env)

    def rename_base(self, base: BaseImage, names: Sequence[str], env: Mapping[str, str]) -> BaseImage:
        """Give a base these names more, and this environment. To be called while `naming`."""
        taken = tuple(map(_tagged, names))
        for other in self.bases():
            if other.key != base.key and set(other.names) & set(taken):
                left = tuple(name for name in other.names if name not in taken)
                _write_json(self.folder / "bases" / other.key / "image.json", asdict(replace(other, names=left)))
        named = replace(base, names=tuple(dict.fromkeys((*base.names, *taken))), env=dict(env))
        _write_json(self.folder / "bases" / base.key / "image.json", asdict(named))
        return named

    def layer(self, key: str) -> Stack | None:
        """The stack whose uppermost layer this is; None when there is no such layer. It is not collected for a while.

        To be asked while `making` a layer that can be collected.
        """
        try:
            document = json.loads((self._layer(key) / "layer.json").read_text())
            os.utime(self._layer(key) / "layer.json")
        except FileNotFoundError:
            return None
        base = document["base"]
        below = None if base is None else _read_base(self.folder / "bases" / base / "image.json")
        return Stack(below, (key, *document["layers"]))

    def _layer(self, key: str) -> Path:
        return self.folder / "layers" / key

    def _base(self, key: str) -> Path:
        return self.folder / "bases" / key

    def hold(self, stack: Stack) -> None:
        """Keep the layers of a stack, and its base, until they are released, or this process ends.

        Raises:
            LookupError: one of them is not there any more; none is held.
        """
        held: list[Path] = []
        for place in self._places(stack):
            try:
                self._hold(place)
            except OSError as error:
                self._release(held)
                raise LookupError(f"{place.parent} has been removed") from error
            held.append(place)

    def _places(self, stack: Stack) -> list[Path]:
        """What is locked of a stack: it stays the same as long as what it stands for."""
        layers = [self._layer(key) / "layer.json" for key in stack.layers]
        return layers if stack.base is None else [self._base(stack.base.key) / "root", *layers]

    def _hold(self, place: Path) -> None:
        if place not in self._held:
            lock = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)  # who has it for himself looks whether it is needed, or removes it
                if not _stands_at(lock, place):
                    raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(place))
            except OSError:
                os.close(lock)
                raise
            self._held[place] = _Hold(lock)
        self._held[place].users += 1
        if place.name == "layer.json":
            os.utime(place)

    def release(self, stack: Stack) -> None:
        """One box less that lies over these layers."""
        self._release(self._places(stack))

    def _release(self, places: Sequence[Path]) -> None:
        for place in places:
            held = self._held[place]
            held.users -= 1
            if not held.users:
                os.close(self._held.pop(place).lock)

    @asynccontextmanager
    async def making(self, key: str) -> AsyncIterator[None]:
        """Hold the right to make a layer. Whoever gets it second may find that it has been made."""
        while (lock := self._try_making(key)) is None:
            await asyncio.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            self._made(key, lock)

    def _try_making(self, key: str) -> int | None:
        """The lock of a key, or None while another has it. Its file goes with it, so what is locked may be gone."""
        path = self.folder / "locks" / key
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        if _try_lock(lock) and _stands_at(lock, path):
            return lock
        os.close(lock)
        return None

    def _made(self, key: str, lock: int) -> None:
        (self.folder / "locks" / key).unlink(missing_ok=True)
        os.close(lock)

    def save(self, key: str, below: Stack, folders: Mapping[str, int], *, shift: int | None) -> Stack:
        """Copy the upper folders of a box, given by descriptors, to a layer; to be called while `making` it.

        `shift` is the owner in these folders that a box sees as root; None keeps owners as they are. The programs of
        the box must have ended.

        Raises:
            OSError: the disk is full, above all.
        """
        place, part = self._layer(key), self._layer(f".{key}")
        trees.remove(part)
        part.mkdir(mode=0o755)
        try:
            systems = BASE_SYSTEMS if below.base is None else below.base.systems
            for name in (*systems, "root"):
                (part / name).mkdir(mode=0o755)
            for name, descriptor in folders.items():
                _copy_upper(descriptor, part / name, part / "linked", shift)
            base = None if below.base is None else below.base.key
            _write_json(part / "layer.json", {"base": base, "layers": list(below.layers), "bytes": _room(part)})
            _sync(part)
            part.rename(place)
        except BaseException:
            trees.remove(part)
            raise
        return Stack(below.base, (key, *below.layers))

    def needs(self, key: str) -> bool:
        """Whether any layer lies over this one. To be asked while `making` it, as what is to lie over it is made."""
        for path in (self.folder / "layers").glob("*/layer.json"):
            try:
                if key in json.loads(path.read_text())["layers"]:
                    return True
            except FileNotFoundError:  # it has been removed meanwhile
                continue
        return False

    def remove(self, key: str) -> None:
        """Remove a layer, complete or not."""
        place, part = self._layer(key), self._layer(f".{key}")
        try:
            place.rename(part)
        except FileNotFoundError:
            return
        trees.remove(part)

    def collect(self) -> list[str]:
        """Remove built layers, the longest unused first, until the others fit, and bases without a name; their keys.

        What a box lies over, in whatever process, what another layer lies over, and what was asked for lately stays.
        """
        removed: list[str] = []
        while self._most_bytes is not None:
            built, below = self._built()
            excess = sum(room for _, room in built.values()) - self._most_bytes
            before = len(removed)
            for key, (_, room) in sorted(built.items(), key=lambda item: item[1]):
                if excess > 0 and key not in below and self._collect(key):
                    removed.append(key)
                    excess -= room
            if excess <= 0 or len(removed) == before:  # else there may be some that nothing lies over any more
                return [*removed, *self._collect_bases()]
        return removed

    def _collect_bases(self) -> list[str]:
        """Remove bases that have lost their names, each to a newer one, and that nothing lies over."""
        with self.naming():
            moved = [base.key for base in self.bases() if not base.names and self._set_aside(base.key)]
        for key in moved:
            trees.remove(self._base(f".{key}"))
        return moved

    def _set_aside(self, key: str) -> bool:
        root = os.open(self._base(key) / "root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            unnamed_s = time.time() - (self._base(key) / "image.json").stat().st_mtime
            if unnamed_s < RECENT_S or not _try_lock(root) or any(_lies_over(key, path) for path in self._layers()):
                return False
            self._base(key).rename(self._base(f".{key}"))
            return True
        finally:
            os.close(root)

    def _layers(self) -> Iterator[Path]:
        return (self.folder / "layers").glob("[!.]*/layer.json")

    def _built(self) -> tuple[dict[str, tuple[float, int]], set[str]]:
        """When each built layer was used last, and the room it takes; and the layers that others lie over."""
        built: dict[str, tuple[float, int]] = {}
        below: set[str] = set()
        for path in self._layers():
            key = path.parent.name
            try:
                document = json.loads(path.read_text())
                below |= {*document["layers"]}
                if not key.startswith((SAVED, BASE)):
                    room = document["bytes"] if "bytes" in document else _room(path.parent)  # not told of older ones
                    built[key] = path.stat().st_mtime, room
            except FileNotFoundError:  # it has been removed meanwhile
                continue
        return built, below

    def _collect(self, key: str) -> bool:
        lock = self._try_making(key)
        if lock is None:
            return False
        try:
            used = os.open(self._layer(key) / "layer.json", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._made(key, lock)
            return False
        try:
            recent = time.time() - os.fstat(used).st_mtime < RECENT_S
            if recent or not _try_lock(used) or self.needs(key):
                return False
            self.remove(key)
            return True
        finally:
            os.close(used)
            self._made(key, lock)

    def sweep(self) -> list[str]:
        """Remove what makers left that were killed; returns the layers' keys, and names of workplaces.

        Others may sweep at the same time.
        """
        swept = []
        for part in sorted((self.folder / "layers").glob(".*")):
            key = part.name[1:]
            lock = self._try_making(key)
            if lock is not None:
                if part.exists():
                    trees.remove(part)
                    swept.append(key)
                self._made(key, lock)
        for part in sorted((self.folder / "bases").glob(".*")):
            trees.remove(part)
            swept.append(part.name[1:])
        for left in sorted((self.folder / "locks").iterdir()):
            lock = self._try_making(left.name)
            if lock is not None:
                self._made(left.name, lock)
        return [*swept, *self._sweep_workplaces()]

    def _sweep_workplaces(self) -> Iterator[str]:
        for place in sorted(self.folder.glob(f"{WORKPLACE}*")):
            try:
                held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # its maker has left, or another sweep was faster
                continue
            try:
                if time.time() - os.fstat(held).st_mtime > YOUNG_S and _try_lock(held):
                    trees.remove(place)
                    yield place.name
            finally:
                os.close(held)


def _copy_upper(source: int, target: Path, pool: Path, shift: int | None) -> None:
    """A folder's attributes and everything in it. `target` exists; nothing in the source is followed.

    Files of several names have one in `pool` meanwhile, which is no longer than any other.
    """
    pool.mkdir(mode=PRIVATE)
    place, linked = os.open(target, trees.FOLDER), os.open(pool, trees.FOLDER)
    try:
        copier = _Copy(shift, linked)
        trees.copy(source, place, copier.leaf, copier.finish)
    finally:
        os.close(place)
        os.close(linked)
    trees.remove(pool)


class _Copy:
    """Copies one upper folder of an overlay: whiteouts, marks, links and owners with it, sockets without."""

    def __init__(self, shift: int | None, pool: int) -> None:
        self._shift = shift
        self._linked: set[int] = set()
        self._pool = pool

    def leaf(self, source: int, name: str, info: os.stat_result, target: int) -> None:
        if stat.S_ISSOCK(info.st_mode):
            return
        if info.st_nlink > 1 and info.st_ino in self._linked:
            os.link(str(info.st_ino), name, src_dir_fd=self._pool, dst_dir_fd=target, follow_symlinks=False)
            return
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISREG(info.st_mode):
            self._file(source, name, target)
        else:  # a fifo, or the device 0:0 that hides a name of the layers below
            os.mknod(name, stat.S_IFMT(info.st_mode) | 0o600, info.st_rdev, dir_fd=target)
        if os.geteuid() == 0:
            os.chown(name, *self._owners(info), dir_fd=target, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=target)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=target, follow_symlinks=False)
        if info.st_nlink > 1:
            self._linked.add(info.st_ino)
            os.link(name, str(info.st_ino), src_dir_fd=target, dst_dir_fd=self._pool, follow_symlinks=False)

    @staticmethod
    def _file(source: int, name: str, target: int) -> None:
        old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            new = os.open(name, flags, 0o600, dir_fd=target)
            try:
                trees.copy_bytes(old, new)
                _copy_attributes(old, new)
            finally:
                os.close(new)
        finally:
            os.close(old)

    def finish(self, source: int, target: int) -> None:
        info = os.fstat(source)
        _copy_attributes(source, target)
        if os.geteuid() == 0:
            os.chown(target, *self._owners(info))
        os.chmod(target, stat.S_IMODE(info.st_mode))
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _owners(self, info: os.stat_result) -> tuple[int, int]:
        shift = self._shift or 0
        return max(0, info.st_uid - shift), max(0, info.st_gid - shift)  # the kernel's own have no shift


def _copy_attributes(source: int, target: int) -> None:
    """The overlay's own marks, and what programs keep beside their files."""
    for name in os.listxattr(source):
        space, _, rest = name.partition(".")
        if rest in KEPT_ATTRIBUTES or (space == "user" and not rest.startswith("overlay.")):
            os.setxattr(target, name, os.getxattr(source, name))


def _lies_over(base: str, layer: Path) -> bool:
    try:
        return bool(json.loads(layer.read_text())["base"] == base)
    except FileNotFoundError:  # it has been removed meanwhile
        return False


def _room(folder: Path) -> int:
    """Bytes that a folder's content takes on disk."""
    root = os.open(folder, trees.FOLDER)
    try:
        return sum(info.st_blocks * 512 for info in trees.everything(root))
    finally:
        os.close(root)


def _stands_at(descriptor: int, path: Path) -> bool:
    """Whether what was opened at a path is there still."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


def _read_base(path: Path) -> BaseImage:
    document = json.loads(path.read_text())
    links = tuple((name, target) for name, target in document["links"])
    return BaseImage(document["key"], tuple(document["names"]), document["env"], tuple(document["systems"]), links)


def _write_json(path: Path, document: Any) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _sync(folder: Path) -> None:
    """Everything of the file system that `folder` is on: one call, where a layer has thousands of files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kernel.checked(kernel.libc.syncfs(descriptor), "syncfs")
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
