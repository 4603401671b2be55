"""The worlds around a simulation's nodes: speeds, links, faults, liars; from a TOML file to plain values."""
