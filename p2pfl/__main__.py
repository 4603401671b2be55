"""`python -m p2pfl` is the command `p2pfl`, also where its script is not on the PATH."""

from p2pfl.cli.main import main

if __name__ == "__main__":
    main()
