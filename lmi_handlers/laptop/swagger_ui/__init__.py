"""The page at `/docs`: the OpenAPI document, readable and callable."""
