"""``python -m rlep``."""

from rlep.cli import main

main()
