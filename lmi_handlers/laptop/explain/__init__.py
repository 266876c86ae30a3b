"""`POST /explain`: what the server would do with a request, without doing it."""
