"""Attacks on what a node sends to its neighbors, and tests of the noise that should defend it.

Each attack is a function of arrays and modules that returns its findings, with the paper it is from. `observation` is
what neighbors see; `audit` runs all attacks against one federation, for `p2pfl audit`. docs/explanation/privacy.md
explains what the figures mean.
"""
