"""`from djl_python.session_manager import SessionManager`."""

from lmi_handlers.custom_code.sessions import Session, SessionManager

__all__ = ["Session", "SessionManager"]
