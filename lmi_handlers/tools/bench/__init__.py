"""`lmi bench`: sends requests to a server as clients would, and reports what they wait for.

`workload` says what is sent and when, `apis` in which format, `load` sends it, `report` computes the figures, and `page`
draws them.
"""
