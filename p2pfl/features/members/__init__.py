"""Members that change: the charter of a running node, how it comes and spreads, and what the commands do about it.

Here belongs what only a federation with `admin` keys needs. The charter as a document is in `p2pfl.config.charter`; how
a node goes by a changed federation is the node's own business (`amend`).
"""
