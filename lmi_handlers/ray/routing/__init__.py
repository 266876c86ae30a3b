"""Chooses the replica for a request that HAProxy has given to any of them.

Ray's own way, a router that HAProxy asks, is not used: it costs every POST a connection to another process, knows neither
path nor headers, and no request is served without it. Here, the replica that gets a request passes it on if another one
should answer. If that one cannot be reached, it answers itself.
"""
