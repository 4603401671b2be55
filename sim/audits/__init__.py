"""Attacks on what a node tells its neighbors, and tests of the noise that is to defend it.

Each attack is a function of arrays and modules that returns what it found, with the paper it is from. `observation` is
what neighbors see; `audit` carries all of them out against one federation, for `p2pfl audit`.
docs/explanation/privacy.md explains what the figures mean.
"""
