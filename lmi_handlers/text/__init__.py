"""The text layer: converts between text and token ids for all dialects and engines. Imports no engine library."""
