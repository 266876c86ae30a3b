"""The text layer: text to token ids and back, once for every dialect and every engine. Imports no engine library."""
