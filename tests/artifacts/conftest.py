"""A real S3 server."""

from tests.buckets import bucket_server, s3_server

__all__ = ["bucket_server", "s3_server"]
