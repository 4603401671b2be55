"""The privacy budget of a node: how a person begins it, what pays for a round, where what was spent is written down.

Here belongs what only a node with `[privacy]` needs beside its learner. How rounds are made private is in
`p2pfl.learn.privacy`, the table in `p2pfl.config.privacy`; the ledger, a part of the state, is `p2pfl.engine.ledger`.
"""
