#!/bin/sh
# Generates the Python stubs of every .proto file in the package, in place or below another directory: `scripts/protos.sh [DIRECTORY]`.
set -eu

cd "$(dirname "$0")/.."
out=${1:-.}
find rlep -name '*.proto' -exec .venv/bin/python -m grpc_tools.protoc --proto_path=. \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" {} +
