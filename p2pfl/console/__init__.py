"""Shared by all commands, those of features too: groups of subcommands, and the forms of output."""
