"""Stands in for SGLang's CUDA kernels: its memory pool imports `sgl_kernel.kvcacheio` whatever the device is.

On a CPU without AMX SGLang computes in plain torch and calls none of them; one that is called says so.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Absent(ModuleType):
    """A module of which any name can be imported and none can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        return _absent(f"{self.__name__}.{name}")


def _absent(name: str) -> Any:
    def absent(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name} needs a GPU")

    return absent


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(f"{__name__}.{name}")


kvcacheio = sys.modules[f"{__name__}.kvcacheio"] = _Absent(f"{__name__}.kvcacheio")
