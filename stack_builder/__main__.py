"""Run the command line: ``python -m stack_builder``."""

from stack_builder.cli.app import main

if __name__ == "__main__":
    main()
