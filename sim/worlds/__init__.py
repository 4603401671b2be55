"""The worlds around the nodes of a simulation: speeds, links, faults, liars; from a TOML file to plain values."""
