"""Stateful inference: features of a session's first request are kept in a file for its later requests."""

import datetime
import logging

import numpy as np
from djl_python import Input, Output
from djl_python.session_manager import SessionManager

SESSION_ID = "X-Amzn-SageMaker-Session-Id"


class StatefulModel:
    def __init__(self, properties):
        self.session_manager = SessionManager(properties)

    def create_session(self, data):
        session = self.session_manager.create_session()
        features = session.get_as_numpy("features/first", shape=(len(data["values"]),), dtype=np.float32, create=True)
        features[:] = data["values"]
        session.put("count", len(data["values"]))
        expires = datetime.datetime.fromtimestamp(session.expiration_ts, tz=datetime.timezone.utc)
        outputs = Output().add_as_json({"result": f"created {len(session.session_id)}"})
        return outputs.add_property(SESSION_ID, f"{session.session_id}; Expires={expires:%Y-%m-%dT%H:%M:%SZ}")

    def add(self, session_id, data):
        session = self.session_manager.get_session(session_id)
        features = session.get_as_numpy("features/first", shape=(session.get("count"),))
        features += np.asarray(data["values"], dtype=np.float32)
        return Output().add_as_json({"features": features})

    def close_session(self, session_id):
        self.session_manager.close_session(session_id)
        outputs = Output().add_as_json({"result": "closed"})
        return outputs.add_property("X-Amzn-SageMaker-Closed-Session-Id", session_id)


model = None


def handle(inputs: Input) -> Output:
    global model
    if model is None:
        model = StatefulModel(inputs.get_properties())
    if inputs.is_empty():
        return None

    data = inputs.get_as_json()
    session_id = inputs.get_property(SESSION_ID)
    try:
        if data["type"] == "start_session":
            return model.create_session(data)
        if data["type"] == "add":
            return model.add(session_id, data)
        if data["type"] == "close_session":
            return model.close_session(session_id)
        raise ValueError(f"unknown type {data['type']}")
    except Exception as e:
        logging.exception("inference failed")
        return Output().error(str(e))
