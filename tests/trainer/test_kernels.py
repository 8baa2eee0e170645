"""Paths that exist on GPUs only are refused where they cannot run."""

import pytest

from components.config import ModelConfig, TrainerConfig
from components.errors import ConfigError
from components.trainer.megatron.specs import check_kernels
from tests.trainer.conftest import HYBRID

ALL = TrainerConfig.model_validate(
    {
        "kernels": {"transformer_engine": True, "grouped_gemm": True, "fusions": True},
        "dispatcher": "deepep",
        "layout": {"ep": 2, "dp": 2},
    }
)
WITHOUT_ENGINE = TrainerConfig.model_validate({"kernels": {"grouped_gemm": True}})


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (ALL, ["trainer.kernels.transformer_engine", "trainer.dispatcher deepep"]),
        (WITHOUT_ENGINE, ["trainer.kernels.grouped_gemm"]),
    ],
)
def test_every_path_that_lacks_a_gpu_or_its_package_is_named_with_what_it_lacks(
    config: TrainerConfig, keys: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_kernels(config, ModelConfig(), cuda=False, installed=lambda package: False)
    lines = [line for line in str(refused.value).splitlines() if "needs" in line]
    assert len(lines) == len(keys)
    for key, line in zip(keys, lines, strict=True):
        assert key in line
        assert "CUDA and the package" in line


def test_memory_of_gpus_is_refused_where_there_are_none() -> None:
    config = TrainerConfig(device_memory_gib=80)
    with pytest.raises(ConfigError, match="device_memory_gib is of a GPU"):
        check_kernels(config, ModelConfig(), cuda=False, installed=lambda package: True)
    check_kernels(config, ModelConfig(), cuda=True, installed=lambda package: True)


def test_a_machine_that_has_all_of_them_is_not_refused() -> None:
    check_kernels(ALL, ModelConfig(), cuda=True, installed=lambda package: True)


def test_a_missing_package_is_said_where_there_is_a_gpu() -> None:
    with pytest.raises(ConfigError, match="the package deep_ep on the trainer's machine"):
        check_kernels(ALL, ModelConfig(), cuda=True, installed=lambda package: package != "deep_ep")


def test_transformer_engine_is_refused_for_layers_that_it_would_silently_replace() -> None:
    with pytest.raises(ConfigError, match="no layers for a qwen3_5_moe"):
        check_kernels(ALL, HYBRID, cuda=True, installed=lambda package: True)
