"""``rlep pool …``: every verb of an experience pool, a file for each group."""

from rlep.cli.pool import keep, look, move, serve, share
from rlep.cli.pool.which import pool_app

__all__ = ["keep", "look", "move", "pool_app", "serve", "share"]
