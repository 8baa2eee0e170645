#!/usr/bin/env bash
# Makes a virtual environment with the stock SGLang wheel that serves on a CPU: install.sh FOLDER
# It is not the project's: SGLang's dependencies and Longshell's do not agree. 2.3 GB; does nothing when up to date.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../../.." && pwd)"
folder="$1"

want="$(cat "$here/install.sh" "$here/requirements.txt" | sha256sum | cut -c1-32)"
if [ "$(cat "$folder/.longshell-stamp" 2>/dev/null || true)" = "$want" ]; then exit 0; fi

uv="$root/.venv/bin/uv"
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
backend=()
[ -n "$UV_FIND_LINKS" ] || backend=(--torch-backend cpu)
rm -rf "$folder"
"$uv" venv --quiet --python "$root/.venv/bin/python" "$folder"
install=("$uv" pip install --quiet --python "$folder/bin/python" --link-mode copy)
"${install[@]}" "${backend[@]}" torch==2.13.0
# Without their dependencies, which are CUDA's. Of torchvision the Python part is imported; the shim stands in for its
# compiled part, which is linked against CUDA.
"${install[@]}" --no-deps torchvision==0.28.0 sglang==0.5.12.post1
"${install[@]}" --no-deps -r "$here/requirements.txt"
echo "$want" > "$folder/.longshell-stamp"
