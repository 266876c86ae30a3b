"""The console: a page for browsers that tries the APIs, shows what is running and how the server is configured."""
