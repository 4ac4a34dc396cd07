"""``python -m rlep.hub ORG/NAME COMMIT``: a node's own copy of a model; prints its directory.

An engine's process never talks to the hub: the actor has this one do it first.
"""

from __future__ import annotations

import sys

from rlep.core.errors import ModelError
from rlep.hub.resolve import download_model

if __name__ == "__main__":
    try:
        sys.stdout.write(f"{download_model(*sys.argv[1:3])}\n")
    except ModelError as error:
        sys.exit(str(error))
