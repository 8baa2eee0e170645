"""Who the programs of a box are, by files that the box may have changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.sandbox.zygote import users


def test_a_passwd_that_is_a_pipe_has_no_users_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "passwd"
    os.mkfifo(held)
    real = os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        assert flags & os.O_NONBLOCK, "a pipe would be waited for"
        return real(held, flags, mode)

    monkeypatch.setattr(users.os, "open", opened)
    with pytest.raises(ValueError, match="no user worker"):
        users.find("worker")
    assert users.find("7").uid == 7
