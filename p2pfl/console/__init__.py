"""Code shared by all commands, including those of features: groups of subcommands, and output formats."""
