"""Boxes that outlive the process that uses them: hosts hold them, one owner after another takes them over."""

from components.sandbox.host.client import CallLog, HostBackend
from components.sandbox.host.launch import Address, Place, claim, open_host, open_place, required
from components.sandbox.host.spread import Hosts, LoggedBackend
from components.sandbox.host.wire import HeldBox

__all__ = [
    "Address",
    "CallLog",
    "HeldBox",
    "HostBackend",
    "Hosts",
    "LoggedBackend",
    "Place",
    "claim",
    "open_host",
    "open_place",
    "required",
]
