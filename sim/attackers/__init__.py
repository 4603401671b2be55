"""Liars as real processes, to test a federation: `python -m sim.attackers FEDERATION --node NAME --attack SPEC`.

A liar runs the shipped node, has its node's key, and shows neighbors what an attack of `sim.attacks` makes up from what
a neighbor really sees: its own model, and the replicas on its own edges. A node imports nothing from here and has no
option to lie; `p2pfl demo --byzantine` finds `offer.OFFER` by the entry point group `p2pfl.attackers`.
"""
