"""Scripted demonstrations with documented habits, and the tokenizer that is trained on their text."""

from components.demonstrations.collect import Demonstration, collect
from components.demonstrations.corpus import corpus
from components.demonstrations.demonstrator import ORACLE, Demonstrator
from components.demonstrations.repeats import repeats
from components.demonstrations.tokenizer import train_tokenizer
from components.demonstrations.ways import BLIND, WAYS

__all__ = [
    "BLIND",
    "ORACLE",
    "WAYS",
    "Demonstration",
    "Demonstrator",
    "collect",
    "corpus",
    "repeats",
    "train_tokenizer",
]
