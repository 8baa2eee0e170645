"""Sandboxes: where a model's commands run (design 6). `open_backend` is the way in."""

from components.sandbox.backend import ZygoteBackend, open_backend
from components.sandbox.contract import ExecResult, Sandbox, SandboxBackend, SandboxSpec, Terminal
from components.sandbox.image import CopyStep, FileEntry, ImageSpec, RunStep, read_dockerfile

__all__ = [
    "CopyStep",
    "ExecResult",
    "FileEntry",
    "ImageSpec",
    "RunStep",
    "Sandbox",
    "SandboxBackend",
    "SandboxSpec",
    "Terminal",
    "ZygoteBackend",
    "open_backend",
    "read_dockerfile",
]
