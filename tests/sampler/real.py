"""A real SGLang on this CPU, where `make sglang` installed one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import pytest

from components.config import SGLangConfig

T = TypeVar("T")

PYTHON = os.environ.get("LONGSHELL_SGLANG_PYTHON")
START_TIMEOUT_S = 900.0
"""Half a minute on an idle machine; eight minutes were too few on two cores with a load of eighteen."""
SGLANG = SGLangConfig(
    python=PYTHON or "",
    attention_backend="torch_native",
    memory_fraction=0.1,
    # What a CPU needs beyond what `launch_sampler` passes everywhere.
    arguments=(
        "--device", "cpu", "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-cuda-graph",
        "--max-total-tokens", "8192",
    ),
    environment={
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(Path(__file__).parent / "sglang_cpu" / "shim"),
        "OMP_NUM_THREADS": "1",
    },
)  # fmt: skip


def real_sglang(test: T) -> T:
    """Marks a test or a suite that needs one."""
    missing = pytest.mark.skipif(PYTHON is None, reason="`make sglang` installs a real SGLang and runs this")
    return pytest.mark.sglang_cpu(pytest.mark.timeout(2_400)(missing(test)))
