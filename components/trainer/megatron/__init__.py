"""The Megatron-Core backend of the trainer."""

from components.trainer.megatron.trainer import MegatronTrainer

__all__ = ["MegatronTrainer"]
