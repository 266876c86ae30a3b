"""Prometheus metrics: definitions (`catalogue`), storage (`cells`) and the text format (`series`)."""
