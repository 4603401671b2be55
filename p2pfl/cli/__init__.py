"""Commands."""

import sys

from p2pfl.names import foreign_package

sentence = foreign_package()
if sys.maxsize < 1 << 32:
    sentence = "p2pfl needs a 64-bit system and Python; this Python has 32 bits"
if sentence is not None:  # before anything is imported that another project has, or nobody for 32 bits
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(2)
