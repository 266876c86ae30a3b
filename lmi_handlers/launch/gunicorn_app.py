"""gunicorn as `lmi serve` runs it: the working directory, which may be a model's folder, stays off `sys.path`."""

from __future__ import annotations

import os

from gunicorn.app.wsgiapp import WSGIApplication


class Application(WSGIApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's application."""

    def chdir(self) -> None:
        """Change the working directory, as gunicorn does, and leave `sys.path` alone."""
        os.chdir(self.cfg.chdir)


if __name__ == "__main__":
    Application("%(prog)s [OPTIONS] [APP_MODULE]").run()
