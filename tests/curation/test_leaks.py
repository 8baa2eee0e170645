"""Tests and solutions are found in the environment under any name and in any wrapping; what anybody writes is not."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from components.curation import Refused, Rejection
from components.curation.leaks import Secrets, search_environment
from components.curation.unpack import Allowance, unpacked
from components.pool import load_task
from tests.curation.mixed import animal
from tests.sandbox.test_archive import END, FILE, attributes, header, sparse

NAME = "heron"


def tar(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", content)
    return buffer.getvalue()


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda content: content,
    "with other white space and a comment": lambda content: b"# mine\n" + content.replace(b"\n", b"  \n\t"),
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "a zip": zipped,
    "a tar in a gzip": lambda content: gzip.compress(tar("a/b", content)),
    "a gzip in a tar in a zip": lambda content: zipped(tar("a", gzip.compress(content))),
    "a git object": lambda content: zlib.compress(b"blob %d\0" % len(content) + content),
    "Base64": base64.b64encode,
}


@pytest.mark.parametrize("part", ["tests/test.sh", "solution/solve.sh"])
@pytest.mark.parametrize("name", WRAPPINGS)
def test_tests_and_solution_are_found_in_every_wrapping(tmp_path: Path, name: str, part: str) -> None:
    task = animal(tmp_path / NAME, NAME)
    secrets = Secrets.of(load_task(task))
    search_environment(load_task(task), secrets)
    (task / "environment/files/blob").write_bytes(WRAPPINGS[name]((task / part).read_bytes()))
    with pytest.raises(Refused, match=f"environment/files/blob.* {part}") as refusal:
        search_environment(load_task(task), secrets)
    assert refusal.value.rejection is Rejection.LEAK


def test_a_part_of_the_solution_is_quoted_and_a_line_that_anybody_writes_is_none(tmp_path: Path) -> None:
    task = animal(tmp_path / NAME, NAME)
    secrets, place = Secrets.of(load_task(task)), task / "environment/files/notes"
    place.write_text("cd /app\nset -e\nmkdir -p /app/out\nrm heron-sorted.tmp\n")
    search_environment(load_task(task), secrets)
    place.write_text("Hint: tail -n 1 heron-sorted.tmp | cut -d' ' -f1 > heron-champion.txt\n")
    with pytest.raises(Refused, match=r"1 of the 3 telling lines of solution/solve.sh, such as .tail -n 1"):
        search_environment(load_task(task), secrets)


def test_a_script_that_only_starts_the_tests_is_no_secret_and_the_tests_are(tmp_path: Path) -> None:
    task = animal(tmp_path / NAME, NAME)
    start = "#!/bin/bash\npython3 -m pytest --junitxml=/logs/verifier/junit.xml /tests/test_outputs.py -rA --color=no\n"
    (task / "tests/test.sh").write_text(start)
    (task / "tests/test_outputs.py").write_text(
        "from pathlib import Path\ndef test_it():\n    assert Path('/app/heron-champion.txt').read_text() == 'two'\n"
    )
    secrets, place = Secrets.of(load_task(task)), task / "environment/files/run.sh"
    place.write_text(start)
    search_environment(load_task(task), secrets)
    place.write_bytes((task / "tests/test_outputs.py").read_bytes())
    with pytest.raises(Refused, match="tests/test_outputs"):
        search_environment(load_task(task), secrets)


def test_data_that_tests_and_environment_share_is_flagged_and_not_refused(tmp_path: Path) -> None:
    task = animal(tmp_path / NAME, NAME)
    data = b"heron-one 12\nheron-two 40\nheron-three 31\n"
    (task / "tests/pristine.txt").write_bytes(data)
    flags = Secrets.of(load_task(task)).refuse([("/app/herons.txt", data)])
    assert [(flag.kind, flag.detail) for flag in flags] == [
        ("leak", "/app/herons.txt has the bytes of tests/pristine.txt")
    ]


def test_what_claims_to_be_an_archive_costs_no_more_than_a_bound(tmp_path: Path) -> None:
    secrets = Secrets.of(load_task(animal(tmp_path / NAME, NAME)))
    bomb, many, most = gzip.compress(b"\0" * 50_000), io.BytesIO(), 20_000
    assert [len(content) for _, content in unpacked("bomb", bomb, Allowance(most))] == [len(bomb), most]
    with zipfile.ZipFile(many, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(str(number), b"\0" * 15_000)
    inside = unpacked("many", many.getvalue(), Allowance(most))
    assert sum(len(content) for place, content in inside if "!" in place) == most
    assert len(list(unpacked("spaces", b" " * (1 << 20) + b"!", Allowance()))) == 1, "and this in no time"
    torn = [gzip.compress(b"x" * 1000)[:20], tar("a", b"x" * 4000)[:700], zipped(b"x" * 1000)[:40], b"x\x9cnothing"]
    [flag] = secrets.refuse((str(number), content) for number, content in enumerate(torn))
    assert (flag.kind, flag.detail.partition(":")[0]) == ("unprobed", "0, 1, 2"), "the last is a text like any other"


def encrypted(content: bytes) -> bytes:
    """A zip that says of its member that it is encrypted."""
    made = bytearray(zipped(content))
    made[6] |= 1
    made[made.index(b"PK\x01\x02") + 8] |= 1
    return bytes(made)


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


SEALED: dict[str, Callable[[bytes], bytes]] = {
    "gzip cut off": lambda content: gzip.compress(content)[:-12],
    "gzip damaged": lambda content: flipped(gzip.compress(content), 12),
    "gzip with another behind it": lambda content: gzip.compress(b"nothing") + gzip.compress(content),
    "bzip2 cut off": lambda content: bz2.compress(content)[:-20],
    "xz damaged": lambda content: flipped(lzma.compress(content), 40),
    "tar with a damaged second header": lambda content: FILE + flipped(tar("a", content), 0) + END,
    "tar cut off": lambda content: tar("a", content)[:600],
    "zip without its list": lambda content: zipped(content)[:-30],
    "zip encrypted": encrypted,
    "7z": lambda content: b"7z\xbc\xaf\x27\x1c" + content[::-1],
    "a damaged gzip in a tar": lambda content: tar("a", gzip.compress(content)[:-12]),
}


@pytest.mark.parametrize("name", SEALED)
def test_what_cannot_be_looked_into_is_told_since_anything_may_be_in_it(tmp_path: Path, name: str) -> None:
    # Tests behind a byte that is wrong were found by nobody, and nobody was told that nobody had looked.
    task = animal(tmp_path / NAME, NAME)
    secrets, tests = Secrets.of(load_task(task)), (task / "tests/test.sh").read_bytes()
    box = {"/app/blob": b"nothing", "/app/good.tgz": gzip.compress(tar("a", b"nothing"))}
    assert secrets.refuse(box.items()) == []
    [flag] = secrets.refuse([*box.items(), ("/app/pack", SEALED[name](os.urandom(len(tests))))])
    assert flag.kind == "unprobed"
    assert flag.detail.startswith("/app/pack")
    assert flag.detail.endswith(": damaged, encrypted or packed in another way, and not looked into")


def test_one_damaged_member_of_a_zip_hides_no_other(tmp_path: Path) -> None:
    task = animal(tmp_path / NAME, NAME)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("first", b"x" * 100)
        archive.writestr("second", (task / "tests/test.sh").read_bytes())
    with pytest.raises(Refused, match=r"/app/pack.zip!second has the bytes of tests/test\.sh"):
        Secrets.of(load_task(task)).refuse([("/app/pack.zip", flipped(made.getvalue(), 40))])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_with_any_byte_of_a_member_damaged_is_no_error(method: int) -> None:
    # LZMA's error is none of those that zipfile tells of: one task with such a file ended the curation of all.
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("inner", b"x" * 100)
        compressed = archive.getinfo("inner").compress_size
    whole, begins = made.getvalue(), 30 + len("inner")
    dictionary = range(begins + 5, begins + 9) if method == zipfile.ZIP_LZMA else ()  # its size, up to 4 GiB
    for place in sorted({*range(begins, begins + compressed)} - {*dictionary}):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        assert ("z", damaged) in list(unpacked("z", bytes(damaged), Allowance()))


@pytest.mark.parametrize("packing", ["tar", "zip"])
def test_of_the_members_of_archives_no_more_are_unpacked_than_one_allowance_has(packing: str) -> None:
    if packing == "tar":
        many = FILE * 5 + END
    else:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for number in range(5):
                archive.writestr(str(number), "")
        many = made.getvalue()
    for members, short in ((9, True), (10, False)):
        allowance = Allowance(members=members)
        found = [place for name in "ab" for place, _ in unpacked(name, many, allowance) if "!" in place]
        assert allowance.short is short
        assert len(found) == (10 if not short else 9 if packing == "tar" else 5)


@pytest.mark.parametrize(
    "packed",
    [
        header(b"x", 64 << 20) + b" " * 1024,
        header(b"0", -512, "b"),
        sparse(-512),
        attributes(b"g", {str(number): "" for number in range(200)}) + FILE,
    ],
    ids=["headers", "backwards", "sparse", "attributes"],
)
def test_what_a_tar_says_of_its_members_costs_no_more_than_a_bound(packed: bytes) -> None:
    # A size below 0 led back to an earlier member, which came again, and filled the memory.
    allowance = Allowance()
    places = [place for place, _ in unpacked("t", FILE + packed + END, allowance)]
    assert places in (["t", "t!a"], ["t", "t!a", "t!x"])
    assert allowance.short
