"""`python -m tinygpt`."""

from tinygpt.cli.main import main

if __name__ == "__main__":
    main()
