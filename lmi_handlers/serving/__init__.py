"""One model in a web worker: a request is checked, encoded, submitted to the engine and answered."""
