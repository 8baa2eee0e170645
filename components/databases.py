"""Whether a PostgreSQL answers, asked once before anything is built on it.

MLflow asks ten times before it tells its traceback, and Prefect's server ends with one.

Invariant: no password is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from components.naming import hidden

CONNECT_S = 10
"""Until a host that says nothing counts as away."""
_SCHEME, _ASYNC = "postgresql", "+asyncpg"


def unreachable(address: str) -> str | None:
    """Why the database at `address`, of SQLAlchemy's form with its driver, cannot be used; None when it can.

    Of addresses that are not of a PostgreSQL nothing is asked.
    """
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    if not address.startswith(_SCHEME):
        return None
    try:
        if address.partition("://")[0].endswith(_ASYNC):
            asyncio.run(_connect_async(address))
        else:
            _connect(address, {"connect_timeout": CONNECT_S})
    except (SQLAlchemyError, OSError, ValueError, TypeError) as error:  # TypeError: an option that the driver lacks.
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        told = " ".join(str(cause).split()) or type(cause).__name__
        return hidden(told, address)
    return None


def _connect(address: str, options: Mapping[str, int]) -> None:
    from sqlalchemy import create_engine

    engine = create_engine(address, connect_args=dict(options))
    try:
        engine.connect().close()
    finally:
        engine.dispose()


async def _connect_async(address: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(address, connect_args={"timeout": CONNECT_S})
    try:
        async with engine.connect():
            pass
    finally:
        await engine.dispose()
