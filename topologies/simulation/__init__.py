"""Consensus without learning, in numpy: what theory predicts, measured. No network, no time, no models."""
