"""Nodes on one LAN: they announce themselves and find each other, and `p2pfl doctor` says what is in the way."""
