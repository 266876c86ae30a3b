"""The command line: the server's own commands, and how those of tools and other distributions are found."""
