"""The Megatron-Core backend of the trainer."""

from components.trainer.megatron.remote import RemoteTrainer, open_trainer
from components.trainer.megatron.trainer import MegatronTrainer

__all__ = ["MegatronTrainer", "RemoteTrainer", "open_trainer"]
