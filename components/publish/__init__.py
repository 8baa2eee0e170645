"""Weights from the trainer to the samplers."""

from __future__ import annotations

from pathlib import Path

import torch

from components.config import PublishConfig
from components.errors import ConfigError
from components.publish.barrier import Publication, Publisher, WeightSource
from components.publish.collective import CollectivePublisher
from components.publish.disk import DiskPublisher

__all__ = ["CollectivePublisher", "DiskPublisher", "Publication", "Publisher", "WeightSource", "open_publisher"]


def open_publisher(config: PublishConfig, folder: Path) -> Publisher:
    """The configured publisher.

    Args:
        folder: where `method: disk` writes.

    Raises:
        ConfigError: nccl was asked for where there is no GPU.
    """
    if config.method == "disk":
        return DiskPublisher(folder, config.timeout_s)
    if config.backend == "nccl" and not torch.cuda.is_available():
        raise ConfigError(["publish.backend: nccl needs a GPU in the trainer's process; take gloo"])
    return CollectivePublisher(config.host, config.backend, round(config.bucket_mb * 2**20), config.timeout_s)
