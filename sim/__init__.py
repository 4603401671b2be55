"""Virtual time for the node's own code: the shipped core and engine under another clock, another link."""
