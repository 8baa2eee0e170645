"""What a benchmark ran on. Figures of two machines, or of a busy and an idle one, are not compared."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch


def describe() -> dict[str, Any]:
    """Processor, cores, load a minute ago, and the versions that decide the figures."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
