"""`from djl_python.np_util import from_nd_list, to_nd_list`."""

from lmi_handlers.custom_code.ndlist import decode as from_nd_list
from lmi_handlers.custom_code.ndlist import encode as to_nd_list

__all__ = ["from_nd_list", "to_nd_list"]
