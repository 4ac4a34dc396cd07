#!/bin/sh
# Resolves the extras of pyproject.toml into the locks in requirements/, for every supported Python at once.
# Arguments go to uv, e.g. `scripts/lock.sh --upgrade-package ray`. uv does not read pip's configuration: where PyPI is
# mirrored, say so through UV_INDEX and UV_FIND_LINKS.
set -eu

cd "$(dirname "$0")/.."
: "${UV_FIND_LINKS=https://download.pytorch.org/whl/cpu/torch/}" # PyPI has no CPU build of torch
export UV_FIND_LINKS

compile() {
    name=$1
    shift
    .venv/bin/python -m uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
        --no-annotate --no-emit-index-url --generate-hashes --custom-compile-command "make lock" \
        --output-file "requirements/$name.txt" "$@"
    # A pin and its hashes in one line, until the lines are chosen.
    sed -i -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' "requirements/$name.txt"
}

compile cpu --extra cpu --overrides requirements/cpu.overrides.txt "$@"
# The CUDA build is the one PyPI has.
(unset UV_FIND_LINKS && compile cuda --extra cuda "$@")

# The tools are resolved with the CPU packages and listed without them: they install on top of either lock.
compile dev --extra cpu --extra dev --overrides requirements/cpu.overrides.txt --constraints requirements/cpu.txt "$@"
awk '{ pin = $0; sub(/ --hash.*/, "", pin) } NR == FNR { cpu[pin]; next } /^#/ || !(pin in cpu)' \
    requirements/cpu.txt requirements/dev.txt >requirements/dev.only
mv requirements/dev.only requirements/dev.txt
# Lines that no supported machine installs.
sed -i -E "/sys_platform == '(never|win32|emscripten)'/d" requirements/cpu.txt requirements/cuda.txt requirements/dev.txt
sed -i 's/ --hash/ \\\n    --hash/g' requirements/cpu.txt requirements/cuda.txt requirements/dev.txt
