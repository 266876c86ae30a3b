"""The model in a web worker: checks each request, tokenises it, submits it to the engine and answers it."""
