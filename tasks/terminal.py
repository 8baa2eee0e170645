"""What a person at a terminal sees of a failure: one message, in the end.

Prefect reports a failure several times, with tracebacks; all of that stays in its UI. The terminal has the log, the
warnings of what is tried again, and last the message: what failed, where, and what to do.
"""

from __future__ import annotations

import logging
import sys
import traceback

from components.errors import Failure, JobFailed, LongshellError, failure_of, no_space

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130
_ENGINES = ("flow_engine", "task_engine")
_REPORTS = ("Task run failed", "Encountered exception", "Crash detected", "Finished in state Failed")


def quiet() -> None:
    """Keeps Prefect's own reports of failures off the terminal."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_report)


def tell(error: Exception) -> int:
    """Prints the one message; gives the exit code. Only a fault of the program itself comes with its traceback."""
    failure = failure_of(error)
    told = no_space(error) or error
    if failure is Failure.PROGRAM and not isinstance(error, LongshellError):
        traceback.print_exception(error)
    print(f"\n{brief(told)}", file=sys.stderr)
    if failure in (Failure.INFRASTRUCTURE, Failure.STOPPED):
        print("What is done is kept: the same command continues", file=sys.stderr)
    return EXIT_REFUSED if failure is Failure.REFUSED else EXIT_FAILED


def brief(error: Exception) -> str:
    """An error in words. Of a job, its own last words: its log has been shown already."""
    if isinstance(error, JobFailed) and error.failure is Failure.STOPPED:
        return f"Ray job {error.submission_id} was stopped: by a person, or with another run that followed it"
    if isinstance(error, JobFailed):
        *_, last = error.tail.splitlines() or ["(no output)"]
        return f"Ray job {error.submission_id} ended {error.status}: {error.reason or last}"
    return str(error) if isinstance(error, LongshellError) else f"{type(error).__name__}: {error}"


def _is_no_report(record: logging.LogRecord) -> bool:
    return record.module not in _ENGINES or not record.getMessage().startswith(_REPORTS)
