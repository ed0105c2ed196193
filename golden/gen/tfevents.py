"""An event file as TensorBoard's own writer makes it: floats in every form, values that are no scalars, a start.

    python golden/gen/tfevents.py internal/format/tfevents/testdata/tensorboard.tfevents

Needs tensorboard 2.20.0. The times are fixed.
"""
import importlib.metadata
import sys

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

assert importlib.metadata.version("tensorboard") == "2.20.0"
Value, Tensor = summary_pb2.Summary.Value, tensor_pb2.TensorProto


def main(path):
    events = [
        event_pb2.Event(wall_time=1.5e9, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=1.5e9 + 1, step=2, summary=summary_pb2.Summary(value=[Value(tag="loss/policy", simple_value=0.25)])),
        event_pb2.Event(
            wall_time=1.5e9 + 2,
            step=3,
            summary=summary_pb2.Summary(
                value=[
                    Value(tag="float_val", tensor=Tensor(dtype=types_pb2.DT_FLOAT, float_val=[-1.1])),
                    Value(tag="content", tensor=Tensor(dtype=types_pb2.DT_FLOAT, tensor_content=b"\x00\x00\x00\x3f")),
                    Value(tag="image", image=summary_pb2.Summary.Image(height=1, width=1)),
                    Value(tag="vector", tensor=Tensor(dtype=types_pb2.DT_FLOAT, float_val=[1, 2])),
                    Value(tag="double", tensor=Tensor(dtype=types_pb2.DT_DOUBLE, double_val=[0.1])),
                ]
            ),
        ),
        event_pb2.Event(
            wall_time=1.5e9 + 3,
            step=4,
            summary=summary_pb2.Summary(value=[Value(tag="nan", simple_value=float("nan")), Value(tag="inf", simple_value=-float("inf"))]),
        ),
        event_pb2.Event(wall_time=1.5e9 + 4, step=4, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
    ]
    with open(path, "wb") as f:
        writer = RecordWriter(f)
        for event in events:
            writer.write(event.SerializeToString())


if __name__ == "__main__":
    main(*sys.argv[1:])
