"""Tasks of the transformers library's models besides generation: classification, extraction, text to text.

They run in the processes of `lmi_handlers.custom_code`, which batch requests. Only these processes import this folder.
"""
