"""Shared by all commands, those of features too: groups of subcommands, and what is printed in which form."""
