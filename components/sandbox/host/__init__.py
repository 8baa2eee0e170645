"""Boxes that outlive the process that uses them: a host holds them, one owner after another takes them over."""

from components.sandbox.host.client import CallLog, HostBackend, LoggedBackend
from components.sandbox.host.launch import open_host
from components.sandbox.host.wire import HeldBox

__all__ = ["CallLog", "HeldBox", "HostBackend", "LoggedBackend", "open_host"]
