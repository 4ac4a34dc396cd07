#!/bin/sh
# Installs one lock and the project into .venv: `scripts/setup.sh cpu`, `cuda`, or `dev` (tools for tests, on top of one of them);
# without an argument the lock that .venv has, or cpu. A .venv has one lock: for the other it is made anew.
# Needs python3 with pip and venv; PYTHON=python3.12 picks another interpreter. A finished set-up is recognised by a
# stamp and costs nothing; an interrupted one is completed by the next call.
set -eu

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv
if [ -e "$venv/.rlep-cuda" ]; then
    lock=${1:-cuda}
else
    lock=${1:-cpu}
fi
stamp=$venv/.rlep-$lock
log=$venv/setup.log

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

fingerprint() {
    cat "requirements/$lock.txt" pyproject.toml scripts/setup.sh | cksum
    pwd # an editable install points here; a moved clone is set up again
}

pip() {
    PIP_PROGRESS_BAR=off "$venv/bin/python" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1
}

# pip's output goes to a log, whose last lines a failure shows; every 10 s a line says how far it is.
progress() {
    total=$(grep -c '^[A-Za-z0-9]' "requirements/$lock.txt")
    while sleep 10 && kill -0 $$ 2>/dev/null; do
        found=$(grep -cE '^(Collecting|Processing|Requirement already satisfied)' "$log" || true) # no match is no failure
        step=$(grep -E '^(Collecting|Processing|Installing)' "$log" | tail -n 1 | cut -c 1-70 || true)
        printf 'setup: %s of %s packages found; %s\n' "$found" "$total" "$step" >&2
    done
}

ended() {
    status=$?
    kill "$beat" 2>/dev/null || true
    [ "$status" -eq 0 ] || tail -n 20 "$log" >&2
}

# Standard library only: it says in one sentence what is wrong.
check() {
    reason=$("$1" -m rlep.core.builds "$2" 2>&1) || fail "$reason"
}

[ -f "requirements/$lock.txt" ] || fail "there is no requirements/$lock.txt"
# pip takes a CPU build of torch for the CUDA lock's (2.13.0+cpu satisfies ==2.13.0), and removes no package of the other lock.
case $lock in cpu) other=cuda ;; cuda) other=cpu ;; *) other=none ;; esac
mixed=$venv/.rlep-$other
unfinished=$venv/.rlep-unfinished # there while its builds are not known to be right
if [ ! -e "$mixed" ] && [ ! -e "$unfinished" ] && [ -x "$venv/bin/rlep" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]; then
    exit 0
fi
if [ -z "${1:-}" ] && [ "$lock" = cpu ] && command -v nvidia-smi >/dev/null; then
    printf 'setup: this machine has an NVIDIA driver; LOCK=cuda installs what its GPUs need\n' >&2
fi

whole='import pip, sys; sys.exit(sys.prefix == sys.base_prefix)' # else it would install into the system's Python
if [ -e "$mixed" ] || [ -e "$unfinished" ] || ! "$venv/bin/python" -c "$whole" 2>/dev/null; then
    command -v "$python" >/dev/null || fail "$python not found: install Python 3.11, 3.12 or 3.13, or set PYTHON=/path/to/it"
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
        fail "$("$python" --version) is not supported: set PYTHON to Python 3.11, 3.12 or 3.13"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python lacks the venv module (Debian and Ubuntu: apt install python3-venv)"
    [ "$lock" != cuda ] || check "$python" compiler
    [ ! -e "$mixed" ] || printf 'setup: %s has the packages of requirements/%s.txt: it is made anew\n' "$venv" "$other" >&2
    [ ! -e "$unfinished" ] || printf 'setup: %s was not set up to the end: it is made anew\n' "$venv" >&2
    python=$("$python" -c 'import sys; print(sys._base_executable)') # that of an active .venv goes with it
    rm -rf "$venv.old"
    [ ! -e "$venv" ] || mv "$venv" "$venv.old" # at once: half of an environment would be taken for one
    rm -rf "$venv.old"
    "$python" -m venv "$venv"
elif [ "$lock" = cuda ]; then
    check "$venv/bin/python" compiler
fi
: >"$stamp" # empty: not finished

printf 'setup: installing requirements/%s.txt into %s (a first time takes some minutes)\n' "$lock" "$venv" >&2
: >"$log"
progress &
beat=$!
trap ended EXIT
trap 'exit 130' INT TERM HUP
# A lock is complete, so nothing is resolved here; some packages' own requirements are left out on purpose. No file is
# installed whose hash is not in the lock.
locked() {
    pip install --no-deps --require-hashes "$@"
}
# PyPI's torch is the CUDA build; the CPU build comes from a configured index or from PyTorch's own.
torch=$venv/torch.txt
sed -n '/^torch==[^ ]*+cpu/,/[^\\]$/p' "requirements/$lock.txt" >"$torch"
if [ -s "$torch" ]; then
    locked -r "$torch" ||
        locked --index-url https://download.pytorch.org/whl/cpu -r "$torch" ||
        fail "neither pip's configured indexes nor download.pytorch.org have the torch of requirements/$lock.txt, with its hash"
fi
locked -r "requirements/$lock.txt"
pip install --no-deps --no-build-isolation -e .
if [ "$lock" = cpu ]; then
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        fail "vLLM on CPU needs libnuma.so.1 (Debian and Ubuntu: apt install libnuma1; Fedora: dnf install numactl-libs)"
fi
if [ "$lock" != dev ]; then
    : >"$unfinished" # unless the check passes, the next call makes the environment anew
    check "$venv/bin/python" "$lock"
    rm "$unfinished"
fi
fingerprint >"$stamp"
printf 'setup: done\n' >&2
