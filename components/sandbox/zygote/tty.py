"""What a terminal's two ends tell of the programs on it, and the one thing that is set on it."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

TIOCGPTPEER = 0x5441


def peer(master: int) -> int:
    """The other end of a terminal, wherever its name would lead here."""
    return fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def silence(slave: int) -> None:
    """No echo: a program that restored the terminal's modes also restored that."""
    attributes = termios.tcgetattr(slave)
    if attributes[3] & termios.ECHO:
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)


def is_idle(master: int, slave: int, shell_group: int | None) -> bool:
    """Whether nothing that was typed waits to be read, and no program stands in front of the shell."""
    waiting = fcntl.ioctl(slave, termios.FIONREAD, bytes(4))
    return int(struct.unpack("i", waiting)[0]) == 0 and os.tcgetpgrp(master) == shell_group
