"""Images that clients send, or say where they are: everything that is done to bytes which nobody here has chosen."""
