#!/usr/bin/env bash
# Makes .venv from pyproject.toml and constraints.txt; does nothing when it is already up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "bootstrap: no Python >= 3.11 with venv found; install one (Debian/Ubuntu: apt-get install python3 python3-venv) or set PYTHON=/path/to/python" >&2
  exit 1
}

want="$(cat pyproject.toml constraints.txt bootstrap.sh | sha256sum | cut -c1-32)"
if [ "$(cat .venv/.longshell-stamp 2>/dev/null || true)" = "$want" ]; then exit 0; fi

python="$(find_python)"
echo "bootstrap: installing pinned packages into .venv with $python (about two minutes the first time)" >&2
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check uv==0.13.9

# uv does not read pip's find-links: hand them over, so that a wheel of the CPU build on disk is used.
# Without one, ask for the CPU build by name: the default wheel brings several GB of CUDA.
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
backend=()
[ -n "$UV_FIND_LINKS" ] || backend=(--torch-backend "${LONGSHELL_TORCH_BACKEND:-cpu}")
.venv/bin/uv pip install --quiet --python .venv/bin/python --link-mode copy -c constraints.txt "${backend[@]}" -e ".[dev]"
# The files of an SGLang wheel, to hold the client against its protocol: read, never imported, so without dependencies.
.venv/bin/uv pip install --quiet --python .venv/bin/python --link-mode copy --no-deps --target .venv/sglang-files sglang==0.5.12.post1
echo "$want" > .venv/.longshell-stamp
