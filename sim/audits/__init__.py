"""Attacks on what a node sends to its neighbors, for `p2pfl audit`: `audit` runs all against one federation.

Each attack is a function of arrays and modules that returns its findings and cites its paper. `scene` has what
neighbors see. docs/explanation/privacy.md explains what the figures mean.
"""
