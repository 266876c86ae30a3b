"""Generates the OpenAPI 3.1 document: the routes, their request bodies and their responses."""
