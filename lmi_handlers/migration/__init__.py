"""`lmi check --from`: the command that starts another server, as a serving.properties.

`command` reads a command line, `tgi` and `vllm` say what each flag means here, and `translation` writes the file.
"""
