"""HTTP: connections, bodies, access, the log of requests. Knows no API."""
