"""Weight updates: the Trainer protocol, batching, and the Megatron-Core backend."""

from components.trainer.batching import pack
from components.trainer.protocol import LearnItem, Level, State, Trainer

__all__ = ["LearnItem", "Level", "State", "Trainer", "pack"]
