"""Reads TensorBoard's event files."""

from tensorboardX.proto.event_pb2 import Event


def events(folder):
    """All events of a folder's files in the order written, but those that name the version."""
    found = []
    for path in sorted(folder.iterdir()):
        data, position = path.read_bytes(), 0
        while position < len(data):
            length = int.from_bytes(data[position : position + 8], "little")
            found.append(Event.FromString(data[position + 12 : position + 12 + length]))
            position += 12 + length + 4
    return [event for event in found if not event.file_version]
