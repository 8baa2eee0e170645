"""A terminal in a box: prompts, programs that wait, programs that draw, programs that flood."""

from __future__ import annotations

import asyncio
import time

import pytest

from components.sandbox import Sandbox
from components.sandbox.terminal import PtyTerminal
from tests.conformance.sandbox_suite import sh

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may keep a shell for a while between a key that it has read and what it shows for it."""
    monkeypatch.setattr("components.sandbox.terminal.QUIET_S", 0.2)


async def opened(box: Sandbox, *, echo: bool = False, prompt: str = "$ ") -> PtyTerminal:
    """A terminal past its first prompt, its output taken."""
    terminal = await box.terminal(rows=24, columns=80, echo=echo, prompt=prompt)
    assert isinstance(terminal, PtyTerminal)
    assert await terminal.new_output() == prompt
    return terminal


async def typed(terminal: PtyTerminal, keystrokes: str, duration_s: float = 60.0) -> str:
    """What a line shows; the shell must be back at a prompt in time."""
    await terminal.send(keystrokes)
    assert await terminal.settle(duration_s, at_prompt=True)
    return await terminal.new_output()


async def shown(terminal: PtyTerminal, text: str) -> None:
    """Returns once the screen has `text`: the program that writes it has begun."""
    async with asyncio.timeout(60):
        while text not in await terminal.screen():
            await asyncio.sleep(0.01)


async def test_settling_takes_as_long_as_the_command_and_not_longer(box: Sandbox) -> None:
    terminal = await opened(box)
    begin = time.monotonic()
    assert await typed(terminal, "sleep 0.3; echo done\n") == "done\n$ "
    assert 0.3 <= time.monotonic() - begin < 50
    begin = time.monotonic()
    await terminal.send("true\n")
    assert not await terminal.settle(0.2, at_prompt=False)
    assert time.monotonic() - begin >= 0.2


async def test_echo_shows_what_is_typed_and_can_be_off_for_good(box: Sandbox) -> None:
    shown = await opened(box, echo=True)
    assert await typed(shown, "echo hi\n") == "echo hi\nhi\n$ "
    hidden = await opened(box)
    assert await typed(hidden, "stty sane\n") == "$ "
    assert await typed(hidden, "echo hi\n") == "hi\n$ "


async def test_a_shell_that_shows_what_is_typed_edits_its_lines(box: Sandbox) -> None:
    terminal = await opened(box, echo=True)
    assert (await typed(terminal, f"echo {'x' * 20_000} | wc -c\n")).endswith("| wc -c\n20001\n$ ")
    await typed(terminal, "echo edited\n")
    assert (await typed(terminal, "\x1b[A\x7fs\n")).endswith("\nedites\n$ ")


async def test_prompt_is_the_caller_s_and_does_not_leak_into_programs(box: Sandbox) -> None:
    terminal = await opened(box, prompt="root@box:# ")
    assert await typed(terminal, "echo x\n") == "x\nroot@box:# "
    assert await typed(terminal, "env | grep -cE 'PS1|PS2|PROMPT|777'\n") == "0\nroot@box:# "


async def test_several_lines_settle_after_the_last(box: Sandbox) -> None:
    terminal = await opened(box)
    assert await typed(terminal, "echo 1\nsleep 0.2\necho 2\n") == "1\n$ $ 2\n$ "
    assert await typed(terminal, "for i in 1 2; do\nsleep 0.1\necho $i\ndone\n") == "> > > 1\n2\n$ "
    assert await typed(terminal, "cat > f <<EOF\none\ntwo\nEOF\ncat f\n") == "> > > $ one\ntwo\n$ "


async def test_an_open_quote_shows_the_continuation_prompt_and_can_be_left(box: Sandbox) -> None:
    terminal = await opened(box)
    assert await typed(terminal, "echo 'open\n") == "> "
    assert (await typed(terminal, "\x03")).endswith("$ ")
    assert await typed(terminal, "echo ok\n") == "ok\n$ "


async def test_a_program_that_waits_for_input_does_not_settle_until_it_is_fed(box: Sandbox) -> None:
    terminal = await opened(box)
    await terminal.send("cat\n")
    assert not await terminal.settle(0.3, at_prompt=True)
    await terminal.send("fed\n")
    await shown(terminal, "fed")
    assert not await terminal.settle(0.2, at_prompt=True)
    assert await typed(terminal, "\x04") == "fed\n$ "
    await terminal.send("read x\n")
    assert not await terminal.settle(0.3, at_prompt=True)
    assert await typed(terminal, "value\necho $x\n") == "$ value\n$ "


async def test_interrupt_ends_a_command_and_even_one_that_ignores_it_can_be_quit(box: Sandbox) -> None:
    terminal = await opened(box)
    await terminal.send("bash -c 'echo begun; exec sleep 600'\n")
    await shown(terminal, "begun")
    assert not await terminal.settle(0.1, at_prompt=True)
    assert (await typed(terminal, "\x03")).endswith("$ ")
    deaf = 'import signal, time; signal.signal(2, signal.SIG_IGN); print("deaf", flush=True); time.sleep(600)'
    await terminal.send(f"python3 -c '{deaf}'\n")
    await shown(terminal, "deaf")
    await terminal.send("\x03")
    assert not await terminal.settle(0.2, at_prompt=True)
    assert (await typed(terminal, "\x1c")).endswith("$ ")


async def test_background_jobs_do_not_hold_the_prompt(box: Sandbox) -> None:
    terminal = await opened(box)
    assert (await typed(terminal, "sleep 60 &\n")).endswith("$ ")
    assert "sleep 60" in await typed(terminal, "jobs\n")


async def test_a_typed_line_without_return_settles_once_shown(box: Sandbox) -> None:
    terminal = await opened(box, echo=True)
    assert await typed(terminal, "echo ha") == "echo ha"
    assert await typed(terminal, "lf\n") == "lf\nhalf\n$ "


async def test_exit_ends_the_terminal_quietly(box: Sandbox) -> None:
    terminal = await opened(box, echo=True)
    await terminal.send("echo last; exit\n")
    assert not await terminal.settle(60, at_prompt=True)
    assert not terminal.alive
    assert "last\n" in await terminal.new_output()
    await terminal.send("ls\n")
    assert not await terminal.settle(5, at_prompt=True)
    assert await terminal.new_output() == ""
    await terminal.close()
    assert await sh(box, "echo box lives") == (0, "box lives\n")
    again = await opened(box)
    assert again.alive


async def test_ten_megabytes_are_survived_within_bounds(box: Sandbox) -> None:
    terminal = await opened(box)
    output = await typed(terminal, "head -c 10000000 /dev/zero | tr '\\0' a; echo; echo end\n")
    assert output.startswith("aaaa")
    assert output.endswith("\nend\n$ ")
    assert "bytes omitted" in output
    assert len(output) < 300_000
    assert await typed(terminal, "echo after\n") == "after\n$ "


async def test_an_endless_writer_is_bounded_and_can_be_interrupted(box: Sandbox) -> None:
    terminal = await opened(box)
    await terminal.send("yes\n")
    await shown(terminal, "y\ny\n")
    assert not await terminal.settle(0.8, at_prompt=True)
    assert len(await terminal.new_output()) < 300_000
    assert (await typed(terminal, "\x03")).endswith("$ ")
    assert await typed(terminal, "echo after\n") == "after\n$ "


async def test_binary_output_is_survived(box: Sandbox) -> None:
    terminal = await opened(box)
    await typed(terminal, "head -c 200000 /dev/urandom\n")
    assert isinstance(await terminal.screen(), str)
    await typed(terminal, "printf '\\033c'; stty sane\n")
    assert (await typed(terminal, "echo after\n")).endswith("after\n$ ")


async def test_a_colour_program_reads_as_plain_text(box: Sandbox) -> None:
    terminal = await opened(box)
    await typed(terminal, "touch x.tar; mkdir d\n")
    assert await typed(terminal, "ls --color=always\n") == "d  x.tar\n$ "
    assert await typed(terminal, "printf '10%%\\r50%%\\r100%%\\n'\n") == "100%\n$ "


async def test_an_editor_shows_its_screen_and_leaves_none_of_it(box: Sandbox) -> None:
    if (await sh(box, "command -v vim"))[0] != 0:
        pytest.skip("no vim on this host")
    await box.put({"/app/text": b"first line\nsecond line\n"})
    terminal = await opened(box)
    await terminal.send("vim -u NONE text\n")
    await shown(terminal, "first line\nsecond line\n~")
    assert not await terminal.settle(0.1, at_prompt=True)
    assert (await terminal.new_output()).startswith("first line\nsecond line\n~")
    await terminal.send("ddihello\x1b")
    await shown(terminal, "hellosecond line\n~")
    assert "hello" in (await terminal.new_output()).splitlines()[0]
    after = await typed(terminal, ":wq\n")
    assert "~" not in after
    assert after.endswith("$ ")
    assert await box.get("/app/text") == b"hellosecond line\n"


async def test_a_pager_can_be_left(box: Sandbox) -> None:
    terminal = await opened(box)
    await terminal.send("seq 1 500 | less\n")
    await shown(terminal, "1\n2\n3\n")
    assert not await terminal.settle(0.1, at_prompt=True)
    assert (await terminal.new_output()).startswith("1\n2\n3\n")
    assert (await typed(terminal, "q")).endswith("$ ")


async def test_the_screen_shows_the_last_lines(box: Sandbox) -> None:
    terminal = await opened(box)
    await typed(terminal, "seq 1 100\n")
    assert (await terminal.screen()).splitlines()[-2:] == ["100", "$"]
    assert len((await terminal.screen()).splitlines()) == 24
    assert await typed(terminal, "clear\n") in ("$", "$ ")


async def test_the_shell_has_a_real_controlling_terminal(box: Sandbox) -> None:
    terminal = await opened(box)
    assert await typed(terminal, "tty; stty size; echo ok > /dev/tty\n") == "/dev/pts/0\n24 80\nok\n$ "


async def test_a_capture_holds_two_thousand_lines_and_the_screen(box: Sandbox) -> None:
    terminal = await box.terminal(rows=24, columns=80, echo=True, prompt="$ ")
    assert await terminal.capture() == ("$", *[""] * 23)
    await terminal.send("seq 1 500\n")
    assert await terminal.settle(60, at_prompt=True)
    assert await terminal.capture() == ("$ seq 1 500", *map(str, range(1, 501)), "$")
    await terminal.send("seq 1 9000\n")
    assert await terminal.settle(60, at_prompt=True)
    lines = await terminal.capture()
    assert 1800 <= len(lines) - 24 <= 2000
    assert lines[-3:] == ("8999", "9000", "$")


async def test_a_paste_larger_than_the_tty_s_buffer_arrives_whole(box: Sandbox) -> None:
    terminal = await opened(box)
    text = "".join(f"{number:05d} {'x' * 90}\n" for number in range(600))
    assert (await typed(terminal, f"cat > pasted <<'EOF'\n{text}EOF\n")).endswith("$ ")
    assert await box.get("/app/pasted") == text.encode()


async def test_what_a_hung_program_does_not_read_is_dropped_and_it_can_still_be_interrupted(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.sandbox.terminal.SEND_PATIENCE_S", 0.2)
    terminal = await opened(box)
    await terminal.send("stty raw; echo hung; sleep 60; stty sane\n")
    await shown(terminal, "hung")
    begin = time.monotonic()
    await terminal.send("y" * 200_000)
    assert time.monotonic() - begin < 50
    await terminal.send("\x03")
    assert terminal.alive
    await terminal.close()
    assert await sh(box, "echo box lives") == (0, "box lives\n")


async def test_a_capture_shows_an_editor_and_afterwards_none_of_it(box: Sandbox) -> None:
    terminal = await box.terminal(rows=24, columns=80, echo=True, prompt="$ ")
    await terminal.send("seq 1 500 | less\n")
    await shown(terminal, "\n4\n")
    assert not await terminal.settle(0.1, at_prompt=True)
    assert (await terminal.capture())[-24:-20] == ("1", "2", "3", "4")
    await terminal.send("q")
    assert await terminal.settle(60, at_prompt=True)
    assert [line for line in await terminal.capture() if line] == ["$ seq 1 500 | less", "$"]
