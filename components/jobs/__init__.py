"""Entrypoints of the Ray jobs, one a stage: `python -m components.jobs.<stage> SPEC`."""
