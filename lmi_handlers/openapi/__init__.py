"""What the server tells about itself: an OpenAPI 3.1 document of its routes, their bodies and their answers."""
