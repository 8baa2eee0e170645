"""Lets the stock SGLang 0.5.12 wheel serve on a torch without CUDA. Test equipment: on PYTHONPATH of that server only.

Three things of a GPU machine are assumed at import or start: torchvision's compiled operators (its wheel is linked
against CUDA and does not load), page-locked memory, and `sgl_kernel`, for which see the package beside this file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Declared, not implemented: torchvision registers fake kernels for them when it is imported.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _pageable(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs)

    return made


for _name in ("empty", "tensor", "zeros"):
    setattr(torch, _name, _pageable(getattr(torch, _name)))
