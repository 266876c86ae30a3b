"""What `import` finds on `sys.path`, also in processes that a handler spawns. `lmi_modules` says what is in it."""

from lmi_handlers.custom_code.lmi_modules import provide

provide(__name__)
