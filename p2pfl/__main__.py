"""Run `python -m p2pfl` as the command `p2pfl`, even if its script is not on the PATH."""

from p2pfl.cli.main import main

if __name__ == "__main__":
    main()
