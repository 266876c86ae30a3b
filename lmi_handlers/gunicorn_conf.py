"""The public name of gunicorn's configuration: `gunicorn -c python:lmi_handlers.gunicorn_conf lmi_handlers.wsgi`."""

from lmi_handlers.launch.gunicorn_conf import *  # noqa: F403  gunicorn takes each name that is a setting of its own
