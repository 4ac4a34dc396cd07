#!/bin/sh
# Generates the Python stubs of every .proto file in the package, in place or below another directory: `scripts/protos.sh [DIRECTORY]`.
# They run with every protobuf and grpcio that pyproject.toml takes, older and newer than the compiler's own: only the compiler's
# checks of versions would refuse these, so they are left out (tests/contract/test_installed_wheel.py runs them all).
set -eu

cd "$(dirname "$0")/.."
out=${1:-.}
find rlep -name '*.proto' -exec .venv/bin/python -m grpc_tools.protoc --proto_path=. \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" {} +
find "$out/rlep" -name '*_pb2.py' -exec sed -i \
    -e '/^from google.protobuf import runtime_version /d' -e '/^_runtime_version\./,/^)/d' {} +
find "$out/rlep" -name '*_pb2_grpc.py' -exec sed -i \
    -e '/^import warnings$/d' -e '/^GRPC_GENERATED_VERSION/,/^    )/d' {} +
