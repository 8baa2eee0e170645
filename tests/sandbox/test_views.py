"""What a view tells of the box it was made from, what cannot be changed in it, and a channel that has no name."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from components.sandbox import Left, Sandbox, ZygoteBackend
from components.sandbox.zygote import changes
from tests.conformance.sandbox_suite import sh
from tests.sandbox.conftest import SMALL

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_reverted_path_is_told(any_box: Sandbox) -> None:
    forge = """
mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; ln -s /app /tests/x; echo x > /conftest.py
echo x >> /etc/passwd; rm /etc/hosts; rm /lib64; ln -s /app /lib64; echo mine > /app/work; touch /root/mine
"""
    await sh(any_box, forge)
    view = await any_box.fork_view()
    assert sorted(view.left.reverted) == [
        "changed /etc/passwd",
        "planted /conftest.py",
        "planted /logs/verifier/reward.txt",
        "planted /tests/x",
        "removed /etc/hosts",
        "replaced /lib64",
    ]
    assert (await sh(view, "ls -d /conftest.py /lib64/ld-linux* 2>&- | wc -l; ls /app /root"))[1].startswith("1\n")
    await view.stop()


async def test_a_clock_that_was_to_be_turned_is_told_and_its_asker_refused(any_box: Sandbox) -> None:
    turn = "import time\nfor n in range(100):\n try: time.clock_settime(0, n)\n except PermissionError: print(n)"
    assert await sh(any_box, f"python3 -c '{turn}' | tail -1; date -s 2001-01-01 2>&1 | head -c 21") == (
        0,
        "99\ndate: cannot set date",
    )
    asking = "import time\nwhile 1:\n try: time.clock_settime(0, 1)\n except PermissionError: 1"
    await any_box.exec(["bash", "-c", f"python3 -c '{asking}' >&- 2>&- & sleep .2"], timeout_s=10)
    view = await any_box.fork_view()
    assert view.left.reverted == ("refused clock_settime of python3", "refused clock_settime of date")
    assert view.left.ended == ("python3",)
    await view.stop()


async def test_a_user_that_cannot_be_is_said_to_be_none(any_box: Sandbox) -> None:
    for user in ("nobody-there", "123456789"):
        result = await any_box.exec(["id"], timeout_s=10, user=user)
        assert result.exit_code == 126
        assert b"user" in result.output


async def test_nothing_is_told_of_honest_work(any_box: Sandbox) -> None:
    await sh(any_box, "echo x > /app/a; python3 -c 'import json, pdb'; git init -q /app/r; cat /etc/passwd")
    await sh(any_box, "(sleep 99 & until grep -q sleep /proc/$!/comm; do :; done)")
    view = await any_box.fork_view()
    assert view.left.reverted == ()
    assert view.left.ended == ("sleep",)
    await view.stop()


async def test_a_hostile_tree_is_told_in_part_and_does_not_end_the_box(root_backend: ZygoteBackend) -> None:
    box = await root_backend.start(SMALL)
    plant = """
import os
os.makedirs('/logs'); os.chdir('/logs')
for n in range(300): open(f'n{n}', 'w').close()
open(b'\\xff\\n\\x1b[31m', 'w').close()
for n in range(1500): os.mkdir('d'); os.chdir('d')
"""
    result = await box.exec(["python3", "-c", plant], timeout_s=20)
    assert result.exit_code == 0, result.output
    view = await box.fork_view()
    assert len(view.left.reverted) == changes.MOST_TOLD + 1
    assert view.left.reverted[-1] == "and 238 more"
    assert all(line.isprintable() and line.isascii() for line in view.left.reverted)
    assert changes.printable(os.fsdecode(b"a\xff\n\x1b")) == "a\\udcff\\x0a\\x1b"
    await view.stop()
    await box.stop()


async def test_a_sealed_folder_is_read_only_whatever_is_tried(any_box: Sandbox) -> None:
    view = await any_box.fork_view()
    await view.put({"/tests/test.sh": b"true\n", "/tests/data/x": b"1\n"})
    await view.seal("/tests")
    for attempt in ("echo > /tests/test.sh", "rm /tests/data/x", "touch /tests/new", "mv /tests /t", "umount /tests",
                    "mount -o remount,rw /tests", "chmod 777 /tests/test.sh", "mount --bind /app /tests"):  # fmt: skip
        assert (await sh(view, f"({attempt}) 2>/dev/null"))[0] != 0, attempt
    assert await view.get("/tests/test.sh") == b"true\n"
    assert await sh(view, "cd /tests && bash test.sh && cat data/x; echo fine > /logs/here && cat /logs/here") == (
        0,
        "1\nfine\n",
    )
    with pytest.raises(OSError, match="Read-only"):
        await view.put({"/tests/more": b""})
    await view.stop()


async def test_a_view_s_shell_cannot_be_looked_into_and_is_a_whole_bash(box: Sandbox) -> None:
    view = await box.fork_view()
    look = """
mapfile -t lines < <(printf 'a\\nb\\n'); echo "${lines[@]}"; echo c | while read -r x; do echo "$x"; done
cat <<< d; read -r e < /dev/stdin <<< e; echo "$e"; (echo f); exec 5> /tmp/g; echo g >&5; cat /tmp/g
python3 - $$ <<'END'
import ctypes, os, sys
for name in ("environ", "mem", "maps", "fd/0"):
    try: open(f"/proc/{sys.argv[1]}/{name}", "rb").read(1)
    except PermissionError: print("refused")
print(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0))
END
"""
    result = await view.exec([view.shell, "-c", look], timeout_s=10, cwd="/")
    assert result.output.decode().split() == [*"abcdefg", *["refused"] * 4, "-1"]
    assert (await sh(view, f"cat {view.shell} | wc -c; echo x > {view.shell}; rm {view.shell}"))[1].startswith("cat: ")
    result = await view.exec([view.shell, "-c", "kill -9 $$"], timeout_s=10)
    assert result.exit_code == 137
    late = await view.exec([view.shell, "-c", "sleep 60 & sleep 60"], timeout_s=0.2)
    assert late.timed_out
    assert "sleep" not in (await sh(view, "ps -e"))[1]
    await view.stop()


async def test_a_secret_is_read_once_and_a_report_comes_back_apart_from_the_output(any_box: Sandbox) -> None:
    script = (
        'read -r said <&4; echo "$said" >&3; echo out; read -r again <&4; echo "[$again]"; env; cat /proc/*/environ'
    )
    result = await any_box.exec(["bash", "-c", script], timeout_s=10, secret=b"hush\n")
    assert result.report == b"hush\n"
    assert result.output.startswith(b"out\n[]\n")
    assert b"hush" not in result.output
    flood = await any_box.exec(["bash", "-c", "head -c 9000000 /dev/zero >&3"], timeout_s=20, secret=b"")
    assert (flood.report, flood.exit_code, flood.truncated) == (b"", 0, False)


async def test_a_program_inherits_no_descriptor_it_was_not_given(any_box: Sandbox) -> None:
    # Python 3.11's socket.recv_fds ignores its flags: every program held a second copy of its request's descriptors.
    for given, expected in (({}, "0 1 2 3"), ({"stdin": b""}, "0 1 2 3"), ({"secret": b""}, "0 1 2 3 4 5")):
        result = await any_box.exec(["bash", "-c", "echo $(ls /proc/self/fd)"], timeout_s=10, **given)
        assert result.output.decode().strip().removesuffix(" 255") == expected


async def test_what_an_image_put_where_views_are_pristine_is_not_held_against_anyone(any_box: Sandbox) -> None:
    backend = any_box._backend
    box = await backend.start(replace(SMALL, files={"/tests/own": b"", "/conftest.py": b"", "/root/.curlrc": b""}))
    await sh(box, "touch /tests/mine")
    view = await box.fork_view()
    assert view.left == Left(("planted /tests/mine",), (), ())
    await view.stop()
    await box.stop()


async def test_what_an_image_put_into_the_home_folder_is_doubted_once_changed(root_backend: ZygoteBackend) -> None:
    spec = replace(SMALL, files={"/root/.local/bin/uv": b"real\n"}, setup=("echo x > /root/.curlrc",))
    box = await root_backend.start(spec)
    view = await box.fork_view()
    assert view.left.doubtful == ()
    await view.stop()
    await sh(box, "echo forged > /root/.local/bin/uv; echo x > /root/.wgetrc; echo work > /root/work")
    view = await box.fork_view()
    assert sorted(view.left.doubtful) == ["/root/.local/bin/uv", "/root/.wgetrc"]
    assert view.left.reverted == ()
    await view.stop()
    await box.stop()
