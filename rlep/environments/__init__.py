"""Environments that come with rlep: each is one file that TRL's ``environment_factory`` takes as it is."""
