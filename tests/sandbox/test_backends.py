"""Each backend passes the shared suite."""

from __future__ import annotations

import pytest

from components.sandbox import ZygoteBackend
from tests.conformance.sandbox_suite import SandboxSuite

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestNamespaceAsRoot(SandboxSuite):
    @pytest.fixture
    def backend(self, root_backend: ZygoteBackend) -> ZygoteBackend:
        return root_backend


class TestNamespaceUnprivileged(SandboxSuite):
    @pytest.fixture
    def backend(self, unprivileged_backend: ZygoteBackend) -> ZygoteBackend:
        return unprivileged_backend


class TestProcess(SandboxSuite):
    @pytest.fixture
    def backend(self, process_backend: ZygoteBackend) -> ZygoteBackend:
        return process_backend
