"""`python -m titanrun` is the command `titanrun`."""

from titanrun.cli.main import main

if __name__ == "__main__":
    main()
