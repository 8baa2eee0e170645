"""Sandboxes: where a model's commands run (design 6). `open_backend` is the way in."""

from components.sandbox.backend import ZygoteBackend, open_backend
from components.sandbox.contract import (
    REPORT_FD,
    SECRET_FD,
    ExecResult,
    Left,
    Remains,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
    Terminal,
    View,
)
from components.sandbox.image import CopyStep, FileEntry, ImageSpec, RunStep, read_dockerfile, read_tree

__all__ = [
    "REPORT_FD",
    "SECRET_FD",
    "CopyStep",
    "ExecResult",
    "FileEntry",
    "ImageSpec",
    "Left",
    "Remains",
    "RunStep",
    "Sandbox",
    "SandboxBackend",
    "SandboxSpec",
    "Terminal",
    "View",
    "ZygoteBackend",
    "open_backend",
    "read_dockerfile",
    "read_tree",
]
