"""The local stack: Prefect server, process worker, Ray head, MLflow server, as processes that we start and stop.

`python -m tasks.stack up` starts what is missing and prints the links; `down` stops exactly what was started.
"""
