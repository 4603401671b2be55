"""The decisions of a node, as a pure state machine."""
