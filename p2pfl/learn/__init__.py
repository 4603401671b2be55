"""Training and testing of a model on a node's own data."""
