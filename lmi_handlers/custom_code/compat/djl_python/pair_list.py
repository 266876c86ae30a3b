"""`from djl_python.pair_list import PairList`."""

from lmi_handlers.custom_code.pair_list import PairList

__all__ = ["PairList"]
