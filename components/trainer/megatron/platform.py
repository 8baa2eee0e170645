"""Runs the unchanged Megatron-Core 0.16.1 on a CPU with gloo; does nothing where CUDA exists.

Invariant: importing this module imports no Megatron. `prepare` is called before any other Megatron import, is safe to
call again, also with another layout, and afterwards a process group and Megatron's model-parallel state exist.

What Megatron assumes and a CPU lacks, each with its smallest answer:
- its fusers are `torch.compile`d at import, which loads the compiler (half of the import time) and would want a C++
  compiler at the first call: `torch.compile` is the identity while Megatron is imported;
- tensors are created on `torch.cuda.current_device()`: that becomes the CPU device;
- the CUDA RNG tracker: Megatron's own tracker for inference, which needs dropout 0 (held by `specs`);
- a side stream in the all-to-all dispatcher: splits are copied where they are needed;
- `device="cuda"`, `.cuda()`, `pin_memory` and checks for `torch.cuda.FloatTensor` in the schedules and optimizers:
  `cuda_as_cpu`, a mode that is active around those calls only.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.overrides import TorchFunctionMode

from components.config import LayoutConfig
from components.trainer.sharding import Share

MODULES = (
    "megatron.core.parallel_state",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.distributed",
    "megatron.core.optimizer.optimizer",
    "megatron.core.pipeline_parallel",
    "megatron.core.tensor_parallel.random",
    "megatron.core.transformer.moe.moe_utils",
    "megatron.core.transformer.moe.token_dispatcher",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands in the layout: its rank along each dimension."""

    layout: LayoutConfig
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int

    @property
    def first_stage(self) -> bool:
        """It holds the embedding."""
        return self.pp == 0

    @property
    def last_stage(self) -> bool:
        """It holds the output layer, and computes losses."""
        return self.pp == self.layout.pp - 1

    @property
    def speaks(self) -> bool:
        """The one rank whose results are those of the trainer."""
        return self.last_stage and self.writes

    @property
    def writes(self) -> bool:
        """The one rank of its stage that hands out whole parameters."""
        return self.tp == self.cp == self.dp == 0

    def share(self, *, even: bool) -> Share:
        """The part of every batch that this rank works on."""
        layout = self.layout
        return Share((self.dp, layout.dp), (self.cp, layout.cp), (self.tp, layout.tp), even)


def prepare(layout: LayoutConfig | None = None, threads: int = 1) -> Place:
    """Imports Megatron, fits it to this machine, starts a process group of one when there is none, cuts it as laid out.

    Raises:
        ValueError: the process group has another number of processes than the layout.
    """
    layout = layout or LayoutConfig()
    on_cpu = not torch.cuda.is_available()
    with _without_compiler() if on_cpu else contextlib.nullcontext():
        modules = {name: importlib.import_module(name) for name in MODULES}
    if on_cpu:
        torch.set_num_threads(threads)
        _fit_to_cpu(modules)
    if not dist.is_initialized():
        # A store in this process: no port, no environment variable, nothing another trainer could collide with.
        dist.init_process_group("gloo" if on_cpu else "nccl", store=HashStore(), rank=0, world_size=1)
    if dist.get_world_size() != layout.world:
        raise ValueError(f"the layout is of {layout.world} processes, the process group has {dist.get_world_size()}")
    state = modules["megatron.core.parallel_state"]
    if not state.model_parallel_is_initialized() or _place(state, layout) is None:
        if state.model_parallel_is_initialized():
            state.destroy_model_parallel()
            _end_groups()
        state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=1,
        )
    place = _place(state, layout)
    assert place is not None
    return place


def _end_groups() -> None:
    """Ends every process group but the one of all ranks. Megatron only forgets them, and each that is forgotten keeps
    its threads, which poll: after some twenty layouts two idle ranks took a processor's time. Collective."""
    dist.barrier()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def _place(state: Any, layout: LayoutConfig) -> Place | None:
    """This rank's place, if Megatron is cut as laid out."""
    sizes = (
        state.get_tensor_model_parallel_world_size(),
        state.get_pipeline_model_parallel_world_size(),
        state.get_context_parallel_world_size(),
        state.get_expert_model_parallel_world_size(),
    )
    if sizes != (layout.tp, layout.pp, layout.cp, layout.ep):
        return None
    return Place(
        layout=layout,
        tp=state.get_tensor_model_parallel_rank(),
        pp=state.get_pipeline_model_parallel_rank(),
        cp=state.get_context_parallel_rank(),
        dp=state.get_data_parallel_rank(),
        ep=state.get_expert_model_parallel_rank(),
    )


def device() -> torch.device:
    """Where this process computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def cuda_as_cpu() -> contextlib.AbstractContextManager[Any]:
    """Around Megatron's schedules and optimizers. Nothing where CUDA exists."""
    return contextlib.nullcontext() if torch.cuda.is_available() else _CudaAsCpu()


def plain_torch() -> contextlib.AbstractContextManager[Any]:
    """Inside `cuda_as_cpu`, around a model's forward pass: it needs no rewriting and is a tenth faster without."""
    return torch._C.DisableTorchFunction()


class _CudaAsCpu(TorchFunctionMode):
    """Rewrites hard-coded CUDA devices to CPU and reports CPU tensors under the CUDA type names."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if not kwargs:
            return func(*args)
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _uncompiled(model: Callable[..., Any] | None = None, **_: Any) -> Any:
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    compiler = torch.compile
    torch.compile = _uncompiled
    try:
        yield
    finally:
        torch.compile = compiler


def _cpu_device() -> torch.device:
    return torch.device("cpu")


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _fit_to_cpu(modules: Mapping[str, Any]) -> None:
    torch.cuda.current_device = _cpu_device  # type: ignore[assignment]
    torch.cuda.synchronize = _nothing
    random = modules["megatron.core.tensor_parallel.random"]
    random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    random._get_cuda_rng_state = _nothing
    random._set_cuda_rng_state = _nothing
    moe_utils = modules["megatron.core.transformer.moe.moe_utils"]
    if "te_general_gemm" not in vars(moe_utils):
        moe_utils.te_general_gemm = None  # 0.16.1 reads this name without defining it when Transformer Engine is absent
    dispatcher = modules["megatron.core.transformer.moe.token_dispatcher"].MoEAlltoAllTokenDispatcher
    dispatcher.cuda_dtoh_stream = _NO_STREAM
    dispatcher._maybe_dtoh_and_synchronize = _splits_to_host


_NO_STREAM = object()
"""Taken for a stream that exists already, so that none is made."""


def _splits_to_host(self: Any, point: str, tokens_per_expert: Tensor | None = None) -> Tensor | None:
    """What the side stream would have copied by this point."""
    if point == self.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            value = vars(self)[name]
            if isinstance(value, Tensor):
                setattr(self, name, value.cpu().numpy())
    return tokens_per_expert
