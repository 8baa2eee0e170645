"""Boxes that a Docker engine runs, here or on another machine: nothing of it but its API is used."""

from components.sandbox.docker.backend import DockerBackend, open_docker

__all__ = ["DockerBackend", "open_docker"]
