"""`lmi explain`: what a server would do with a request."""
