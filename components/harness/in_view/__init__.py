"""What a verifier finds at hand in its view: files that run there, not here. Standard library only.

`sitecustomize` is loaded by every Python that heeds the verifier's PYTHONPATH; it makes `python -m pytest` run without
the working folder in front of its modules, and has pytest load `longshell_report`, which streams the outcome of every
test on the verifier's own channel.
"""
