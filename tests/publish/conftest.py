"""The sampler tests' models and oracles, and two servers that tests may kill and start anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from components.config import SamplerConfig
from components.sampler import SamplerServer, launch_sampler
from tests.sampler.conftest import (  # noqa: F401
    CONTEXT,
    model_folder,
    oracle,
    other_folder,
    other_oracle,
)


@pytest.fixture(scope="package")
def servers(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SamplerServer]]:  # noqa: F811
    config = SamplerConfig(slots=4, context_tokens=CONTEXT, prefill_tokens=64)
    log = tmp_path_factory.mktemp("log")
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                launch_sampler(config, model_folder, seed=0, routing=True, log_path=log / f"sampler-{place}.log")
            )
            for place in range(2)
        ]
