"""Prometheus metrics: what is counted (`catalogue`), where the numbers live (`cells`) and how they are written (`series`)."""
