"""Weights from the trainer to the samplers."""

from components.publish.disk import publish

__all__ = ["publish"]
