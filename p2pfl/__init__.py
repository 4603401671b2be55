"""p2pfl: asynchronous peer-to-peer learning of one model, without a server."""
