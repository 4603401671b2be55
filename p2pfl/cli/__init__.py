"""Commands."""

import sys

if sys.maxsize < 1 << 32:  # before anything is imported that is not there for 32 bits
    sys.stderr.write("error: p2pfl needs a 64-bit system and Python; this Python has 32 bits\n")
    sys.exit(2)
