"""Attacks on secure sums: `p2pfl audit FEDERATION --attacks sums`.

The protocol's real state machines (`p2pfl.features.sums.protocol.Sums`) play on a federation's graph in virtual time.
A coalition is what some members have seen, drawn and been dealt, put together. What it can find out is worked out by
other means than the protocol's code: secrets by interpolation and by trying them against published keys, sums by linear
algebra modulo 2^64. Of the protocol only messages and their encoding are used, besides the members themselves.
"""
