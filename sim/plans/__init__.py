"""`p2pfl plan`: which graph, rule, compressor and method to use, from wishes and by simulation."""
