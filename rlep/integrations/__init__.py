"""Replay in other trainers: they draw from an experience pool on a server, and fill it."""
