"""Packages that code written for LMI imports. This folder is on `sys.path` only in processes that run such code."""
