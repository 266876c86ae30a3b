"""Found by `import` on `sys.path`, also in processes that a handler spawns. `lmi_modules` has its contents."""

from lmi_handlers.custom_code.lmi_modules import provide

provide(__name__)
