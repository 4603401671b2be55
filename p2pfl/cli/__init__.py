"""Commands."""

import sys

from p2pfl.names import foreign_package

if (sentence := foreign_package()) is not None:  # before anything else is imported from another project
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(2)
