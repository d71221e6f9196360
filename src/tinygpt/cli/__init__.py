"""The command line: parse, call, print. Nobody imports this package."""
