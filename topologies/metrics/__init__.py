"""What a graph costs and gives: one figure, or one group of figures, in each module."""
