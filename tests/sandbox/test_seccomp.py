"""The system call tables and the filter built from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from components.sandbox.zygote import kernel, seccomp

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
YOUNGER_THAN_HEADERS = {"open_tree_attr"}


@pytest.mark.parametrize("machine", sorted(seccomp.DENIED))
def test_numbers_are_the_kernel_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers on this host")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
    numbers = {found[1]: int(found[2]) for found in re.finditer(pattern, HEADERS[machine].read_text())}
    table = {**seccomp.DENIED[machine], **seccomp.DENIED_EVERYWHERE, **seccomp.ABSENT, **kernel.SYSCALLS[machine]}
    table |= {"clone": seccomp.CLONE[machine], "socket": seccomp.SOCKET[machine]}
    assert {name: number for name, number in table.items() if name not in YOUNGER_THAN_HEADERS} == {
        name: numbers[name] for name in table.keys() - YOUNGER_THAN_HEADERS
    }


def decide(program: list[seccomp.Instruction], arch: int, number: int, argument: int = 0) -> int:
    """Run the filter as the kernel does."""
    words = {seccomp.ARCHITECTURE: arch, seccomp.NUMBER: number, seccomp.FIRST_ARGUMENT: argument}
    value, place = 0, 0
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        if code == seccomp.LOAD:
            value = words[operand]
        elif code == seccomp.RETURN:
            return operand
        else:
            met = {
                seccomp.EQUAL: value == operand,
                seccomp.AT_LEAST: value >= operand,
                seccomp.ANY_BIT: bool(value & operand),
            }[code]
            place += if_true if met else if_false


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("machine", sorted(seccomp.DENIED))
def test_the_filter_refuses_its_list_and_nothing_else(machine: str, ask: bool) -> None:
    program = seccomp.program(machine, ask=ask)
    asked = {seccomp.DENIED[machine][name] for name in seccomp.TOLD} if ask else set()
    arch = seccomp.AUDIT_ARCH[machine]
    denied = {*seccomp.DENIED[machine].values(), *seccomp.DENIED_EVERYWHERE.values()}
    for number in range(500):
        if number in asked:
            expected = seccomp.ASK
        elif number in denied:
            expected = seccomp.REFUSE
        elif number in seccomp.ABSENT.values():
            expected = seccomp.NOT_THERE
        elif number == seccomp.SOCKET[machine]:
            continue
        else:
            expected = seccomp.ALLOW
        assert decide(program, arch, number) == expected, number
    families = [
        family for family in range(64) if decide(program, arch, seccomp.SOCKET[machine], family) == seccomp.ALLOW
    ]
    assert families == [1, 2, 10, 16]
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(program, arch, seccomp.CLONE[machine], flag | 17) == seccomp.REFUSE
    assert decide(program, 1, 0) == seccomp.KILL_PROCESS
    assert decide(program, arch, 0x40000001) == seccomp.REFUSE
