"""HTTP: connections, request bodies, access control, routes and the request log."""
