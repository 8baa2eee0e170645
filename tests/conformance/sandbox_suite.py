"""What every sandbox backend must do. A backend's test module subclasses SandboxSuite and provides `backend`."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from components.errors import FaultCause, InfraFault
from components.sandbox import ExecResult, FileEntry, ImageSpec, Sandbox, SandboxBackend, SandboxSpec, read_dockerfile

SPEC = SandboxSpec(memory_mb=192, disk_mb=16, pids=64, files={"/app/start.txt": b"started\n"}, env={"COLOUR": "green"})


async def sh(box: Sandbox, script: str, timeout_s: float = 60.0) -> tuple[int | None, str]:
    """Exit code and output of a shell script in the box."""
    result = await box.exec(["bash", "-c", script], timeout_s=timeout_s)
    return result.exit_code, result.output.decode(errors="replace")


async def until_said(box: Sandbox, argv: list[str], timeout_s: float, **options: int) -> ExecResult:
    """Runs what ends by its timeout alone, with a longer one where it was too short for it to say anything."""
    while True:
        result = await box.exec(argv, timeout_s=timeout_s, **options)
        if result.output or timeout_s > 60:
            return result
        timeout_s *= 4


def read_image(folder: Path, *lines: str, **files: str) -> ImageSpec:
    """The image of a Dockerfile in a folder with these files."""
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    return read_dockerfile(folder)


class SandboxSuite:
    """Every test starts its own box: they cost milliseconds."""

    async def test_output_exit_code_and_signal_of_a_command(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        assert await sh(box, "echo out; echo err >&2; exit 3") == (3, "out\nerr\n")
        assert (await sh(box, "kill -TERM $$"))[0] == 128 + 15
        apart = await box.exec(["sh", "-c", "echo out; echo err >&2"], timeout_s=60, merge_stderr=False)
        assert (apart.output, apart.stderr) == (b"out\n", b"err\n")
        await box.stop()

    async def test_environment_is_the_spec_s_and_nothing_of_the_host(
        self, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOST_SECRET", "leak")
        box = await backend.start(SPEC)
        result = await box.exec(["env"], timeout_s=60, env={"EXTRA": "1"})
        names = {line.partition("=")[0] for line in result.output.decode().splitlines()}
        assert {"COLOUR", "EXTRA", "HOME", "PATH", "LANG"} <= names
        assert "HOST_SECRET" not in names
        assert (await sh(box, "echo $COLOUR; cat start.txt"))[1] == "green\nstarted\n"
        await box.stop()

    async def test_stdin_and_binary_output_are_exact(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        data = bytes(range(256)) * 1200
        result = await box.exec(["cat"], timeout_s=60, stdin=data)
        assert result.output == data
        assert not result.truncated
        assert (await box.exec(["cat"], timeout_s=60)).output == b""
        await box.stop()

    async def test_a_secret_is_read_once_and_what_is_reported_comes_apart_from_the_output(
        self, backend: SandboxBackend
    ) -> None:
        box = await backend.start(SPEC)
        script = 'read -r said <&4; echo "$said" >&3; echo out; read -r again <&4; echo "[$again]"'
        result = await box.exec(["bash", "-c", script], timeout_s=60, secret=b"hush\n")
        assert (result.report, result.output) == (b"hush\n", b"out\n[]\n")
        assert (await box.exec(["true"], timeout_s=60)).report == b""
        await box.stop()

    async def test_what_cannot_be_run_is_a_result_and_no_fault(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        missing = await box.exec(["no-such-program"], timeout_s=60)
        assert missing.exit_code == 127
        assert b"no-such-program" in missing.output
        assert (await box.exec(["true"], timeout_s=60, cwd="/nowhere")).exit_code == 127
        assert (await box.exec(["./start.txt"], timeout_s=60)).exit_code == 126
        await box.stop()

    async def test_timeout_keeps_output_and_kills_all_that_the_command_started(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        mark = "3141.59"
        script = f"(setsid sleep {mark} &) ; setsid bash -c 'sleep {mark} & sleep {mark}' & echo before; sleep {mark}"
        result = await until_said(box, ["bash", "-c", script], timeout_s=0.4)
        assert (result.exit_code, result.timed_out) == (None, True)
        assert result.output.startswith(b"before\n")  # The shell may get to say that its child was killed.
        count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '^sleep 3141[.]59\\|[^c]sleep 3141[.]59'"
        assert (await sh(box, count))[1] == "0\n"
        await box.stop()

    async def test_a_background_process_does_not_hold_its_command(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        assert await sh(box, "sleep 300 & echo done") == (0, "done\n")
        await box.stop()

    async def test_long_output_keeps_its_head_and_tail(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        result = await box.exec(["seq", "1", "300000"], timeout_s=60, max_output_bytes=2000)
        assert result.truncated
        assert result.output.startswith(b"1\n2\n")
        assert result.output.endswith(b"\n300000\n")
        assert b"bytes omitted" in result.output
        assert len(result.output) < 2100
        await box.stop()

    async def test_files_go_in_and_come_out_exactly(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        blob = hashlib.sha256(b"x").digest() * 30_000
        await box.put({"/app/deep/er/blob": blob, "/app/run": FileEntry(b"#!/bin/sh\necho ran\n", 0o755)})
        assert await box.get("/app/deep/er/blob") == blob
        assert await sh(box, "./run; stat -c %a run deep/er/blob") == (0, "ran\n755\n644\n")
        await box.stop()

    async def test_a_bad_read_is_the_box_s_own_error(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        await sh(box, "mkfifo pipe; mkdir folder; head -c 5000 /dev/zero > big")
        with pytest.raises(FileNotFoundError):
            await box.get("/app/nothing")
        for path in ("/app/pipe", "/app/folder"):
            with pytest.raises(OSError, match=r"regular|Is a directory"):
                await box.get(path)
        with pytest.raises(OSError, match="larger"):
            await box.get("/app/big", max_bytes=4999)
        assert len(await box.get("/app/big", max_bytes=5000)) == 5000
        await box.stop()

    async def test_put_replaces_a_planted_link_and_does_not_write_through_it(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        await sh(box, "echo victim > victim; ln -s victim report; ln -s /nowhere dangling")
        await box.put({"/app/report": b"mine\n", "/app/dangling": b"too\n"})
        assert (await sh(box, "cat victim report dangling; test -L report || echo file"))[
            1
        ] == "victim\nmine\ntoo\nfile\n"
        await box.stop()

    async def test_a_tree_is_copied_with_its_links_unfollowed(self, backend: SandboxBackend, tmp_path: Path) -> None:
        (tmp_path / "inner" / "empty").mkdir(parents=True)
        (tmp_path / "inner" / "run.sh").write_text("echo hello\n")
        (tmp_path / "inner" / "run.sh").chmod(0o755)
        (tmp_path / "secret").symlink_to("/etc/shadow")
        box = await backend.start(SPEC)
        await box.put_tree(tmp_path, "/app/tree")
        script = "cd tree; ./inner/run.sh 2>&1 || bash inner/run.sh; readlink secret; test -d inner/empty && echo empty"
        assert (await sh(box, script))[1].splitlines()[-2:] == ["/etc/shadow", "empty"]
        await box.stop()

    async def test_all_processes_end_at_once(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        stubborn = "trap '' TERM INT HUP; while :; do echo x >> log; sleep .01; done"
        await box.put({"/app/stubborn": stubborn.encode()})
        await sh(box, "for i in 1 2 3 4 5; do setsid bash stubborn & done; until [ -s log ]; do sleep .01; done")
        await box.end_processes()
        size = len(await box.get("/app/log"))
        await asyncio.sleep(0.05)
        assert len(await box.get("/app/log")) == size
        assert await sh(box, "echo usable") == (0, "usable\n")
        await box.stop()

    async def test_reset_brings_back_the_started_state(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        await sh(box, "rm start.txt; echo junk > junk; sleep 100 &")
        await box.reset()
        assert await sh(box, "ls; cat start.txt") == (0, "start.txt\nstarted\n")
        await box.stop()

    async def test_a_box_starts_from_a_snapshot_of_another_and_neither_changes_the_other(
        self, backend: SandboxBackend
    ) -> None:
        box = await backend.start(SPEC)
        await sh(box, "echo work > work; rm start.txt; mkdir kept; ln -s work link; touch tool; chmod 755 tool")
        await sh(box, "setsid sleep 99 & echo started")
        saved = await box.snapshot()
        await sh(box, "echo changed > work")
        spec = replace(SPEC, snapshot=saved)
        first, second = await asyncio.gather(backend.start(spec), backend.start(spec))
        for copy in (first, second):
            assert (await sh(copy, "ls; cat work; readlink link; stat -c %a tool; echo $COLOUR"))[1].splitlines() == [
                "kept", "link", "tool", "work", "work", "work", "755", "green",
            ]  # fmt: skip
        await sh(first, "echo mine > work; rm link")
        assert await second.get("/app/work") == b"work\n"
        await first.reset()
        assert await sh(first, "cat work; ls") == (0, "work\nkept\nlink\ntool\nwork\n")
        again = await first.snapshot()
        third = await backend.start(replace(SPEC, snapshot=again))
        assert await sh(third, "cat work; ls") == (0, "work\nkept\nlink\ntool\nwork\n")
        assert await box.get("/app/work") == b"changed\n"
        await asyncio.gather(*(each.stop() for each in (box, first, second, third)))
        for name in (again, saved, saved):
            await backend.forget(name)
        with pytest.raises(InfraFault, match="snapshot"):
            await backend.start(spec)

    async def test_stop_is_idempotent_and_ends_pending_commands_with_a_fault(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        pending = asyncio.create_task(box.exec(["sleep", "600"], timeout_s=600))
        await asyncio.sleep(0.05)
        await box.stop()
        await box.stop()
        with pytest.raises(InfraFault) as caught:
            await pending
        assert caught.value.cause is FaultCause.SANDBOX
        with pytest.raises(InfraFault):
            await box.exec(["true"], timeout_s=60)

    async def test_a_view_sees_the_result_but_neither_processes_nor_planted_verifiers(
        self, backend: SandboxBackend
    ) -> None:
        box = await backend.start(SPEC)
        await box.put({"/tests/test.sh": b"exit 0\n", "/logs/verifier/reward.txt": b"1\n", "/root/kept": b"home\n"})
        await sh(box, "echo answer > answer; rm start.txt; mkdir sub; ln -s /etc/passwd sub/link; (setsid sleep 99 &)")
        view = await box.fork_view()
        assert sorted(view.left.reverted) == ["planted /logs/verifier/reward.txt", "planted /tests/test.sh"]
        assert len(view.left.ended) == 1
        assert await view.get("/app/answer") == b"answer\n"
        assert await view.get("/root/kept") == b"home\n"
        assert await sh(view, "ls; readlink sub/link") == (0, "answer\nsub\n/etc/passwd\n")
        for path in ("/tests/test.sh", "/logs/verifier/reward.txt"):
            with pytest.raises(FileNotFoundError):
                await view.get(path)
        await view.put({"/tests/test.sh": b"cat answer; echo changed > answer\n", "/logs/verifier/x": b""})
        assert view.id != box.id
        assert view.isolation == box.isolation
        await sh(view, "echo changed > answer")
        assert await box.get("/app/answer") == b"answer\n"
        await view.stop()
        assert await sh(box, "cat answer") == (0, "answer\n")
        await box.stop()

    async def test_an_image_is_brought_up_in_order(self, backend: SandboxBackend, tmp_path: Path) -> None:
        lines = ("FROM debian:12", "WORKDIR /app", "ENV WHO=image", "COPY one a", "RUN cat a > b && echo $WHO >> b")
        image = read_image(tmp_path, *lines, "COPY two a", one="1\n", two="2\n")
        spec = SandboxSpec(image=image, memory_mb=192, disk_mb=16, setup=("echo setup > c",))
        first, second = await asyncio.gather(backend.start(spec), backend.start(spec))
        for box in (first, second):
            assert await sh(box, "cat a b c; rm a; echo gone >> b") == (0, "2\n1\nimage\nsetup\n")
        await first.reset()
        assert await sh(first, "cat a b c; echo $WHO") == (0, "2\n1\nimage\nsetup\nimage\n")
        await asyncio.gather(first.stop(), second.stop())

    async def test_a_failing_image_is_an_image_fault_that_names_its_line(
        self, backend: SandboxBackend, tmp_path: Path
    ) -> None:
        image = read_image(tmp_path, "FROM debian:12", "# a comment", "", "RUN echo because; exit 7")
        with pytest.raises(InfraFault, match=r"(?s)line 4.*exited 7.*because") as caught:
            await backend.start(SandboxSpec(image=image, memory_mb=128, disk_mb=8))
        assert caught.value.cause is FaultCause.IMAGE

    async def test_commands_run_side_by_side(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        results = await asyncio.gather(*(sh(box, f"sleep 0.0{i % 10}; echo {i}") for i in range(24)))
        assert results == [(0, f"{i}\n") for i in range(24)]
        await box.stop()

    async def test_large_requests_and_many_files_pass(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        long = "x" * 120_000
        assert (await box.exec(["echo", long], timeout_s=60)).output == long.encode() + b"\n"
        await box.put({f"/app/many/{i}": b"%d" % i for i in range(1500)})
        assert await sh(box, "ls many | wc -l; cat many/1499") == (0, "1500\n1499")
        await box.stop()

    async def test_a_terminal_keeps_its_state_and_reports_its_prompt(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        terminal = await box.terminal(rows=24, columns=80, echo=False)
        assert await terminal.new_output() == "$ "
        await terminal.send("x=41; cd /tmp\n")
        assert await terminal.settle(60, at_prompt=True)
        await terminal.send("echo $((x+1))\n")
        assert await terminal.settle(60, at_prompt=True)
        assert await terminal.new_output() == "$ 42\n$ "
        await terminal.close()
        await box.stop()

    async def test_a_cancelled_start_leaves_no_box(self, backend: SandboxBackend) -> None:
        spec = SandboxSpec(memory_mb=128, disk_mb=8, setup=("sleep 60",))
        task = asyncio.create_task(backend.start(spec))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        box = await backend.start(SPEC)
        assert await sh(box, "echo fine") == (0, "fine\n")
        await box.stop()
