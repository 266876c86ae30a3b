"""The APIs: one folder each. `registry` lists them."""
