"""Who a peer is, and that nobody else reads or changes what it says. No I/O but the key file; not audited."""
