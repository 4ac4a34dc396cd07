"""Everything that runs on Ray. This environment is set first: Ray reads it when it is imported."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Ray's own handler of SIGTERM prints a stack trace and aborts the process 3 s later, whatever it still has to close.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
# Under `uv run` Ray would copy the working directory and make its environment anew for every actor.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
