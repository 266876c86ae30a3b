"""MindIE's TGI interface."""
