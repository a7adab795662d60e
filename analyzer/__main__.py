"""``python -m analyzer``: the command line where no script is installed."""

from analyzer.cli import main

if __name__ == "__main__":
    main()
