"""Workers as child processes."""

import sys
import time
from pathlib import Path

import children
import pytest
from children import Child, Contestant, Environment, PeerError, interleave
from protocol import Stepper

WORKER = """
import os, sys
sys.path.insert(0, {peers!r})
from protocol import serve

class Worker:
    def add(self, a, b=1):
        print("this is no answer")
        os.write(1, b"nor is this\\n")
        return {{"sum": a + b, "threads": os.environ["OMP_NUM_THREADS"]}}

    def fail(self):
        raise ValueError("wrong")

    def die(self):
        os._exit(3)

    def hang(self):
        import time
        time.sleep(60)

    def _secret(self):
        return {{}}

serve(Worker())
"""


@pytest.fixture
def child(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(peers=str(Path(children.__file__).parent / "peers")))
    where = Environment("toy", Path(sys.executable), script)
    found = Child(where, 2, tmp_path / "toy.log")
    yield found
    found.kill()


def test_questions_and_answers(child):
    assert child.ask("add", a=2, b=3) == {"sum": 5, "threads": "2"}
    assert child.ask("add", a=2) == {"sum": 3, "threads": "2"}
    assert child.ask("peak_memory")["mib"] > 1


def test_what_it_cannot_do_is_an_error_and_not_its_end(child):
    with pytest.raises(PeerError, match=r"^ValueError: wrong$"):
        child.ask("fail")
    with pytest.raises(PeerError, match=r"^it has no subtract$"):
        child.ask("subtract")
    with pytest.raises(PeerError, match=r"^it has no _secret$"):
        child.ask("_secret")
    assert child.ask("add", a=1)["sum"] == 2


def test_it_is_stopped_while_nothing_is_asked(child):
    child.ask("add", a=1)
    state = Path(f"/proc/{child._process.pid}/stat")
    if not state.is_file():
        pytest.skip("no /proc here")

    def stopped():
        return state.read_text().rsplit(")", 1)[1].split()[0] == "T"

    until = time.monotonic() + 10  # a signal arrives when it arrives
    while not stopped() and time.monotonic() < until:
        time.sleep(0.01)
    assert stopped()


def test_a_process_that_ends(child):
    with pytest.raises(PeerError, match=r"^its process ended with code 3; see .*toy\.log$"):
        child.ask("die")
    with pytest.raises(PeerError):
        child.ask("add", a=1)


def test_one_that_takes_too_long_is_killed(child):
    with pytest.raises(PeerError, match=r"^took more than 0 s$"):
        child.ask("hang", timeout=0.4)
    assert not child.alive


def test_a_missing_environment_is_named(tmp_path):
    with pytest.raises(
        PeerError, match=r"no environment in \.venv-bench-tunix; `make bench-peers`"
    ):
        children.environment("tunix", Path(sys.executable), tmp_path)


def test_measures_take_turns(monkeypatch):
    monkeypatch.setattr(children, "SETTLE", 0.0)
    asked = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def ask(self, **request):
            asked.append((self.name, request["seed"]))
            if self.name == "c" and request["seed"] == 1:
                raise PeerError("out of memory")
            return {"seconds": float(len(asked))}

    a, b, c = (Contestant(name, Fake(name), {"do": "x"}) for name in "abc")
    b.rounds = 1
    told = [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    interleave([a, b, c], 3, told, beside=lambda: asked.append("beside"))
    # A round that is not kept, then three; b takes part in the first alone, c fails in the second.
    assert asked == [
        ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("c", 0), ("c", 0),
        ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("c", 0), ("c", 0), "beside",
        ("a", 1), ("a", 1), ("c", 1), "beside",
        ("a", 2), ("a", 2), "beside",
    ]  # fmt: skip
    # The second time of each; `beside` is counted too.
    assert [one["seconds"] for one in a.answers] == [8.0, 15.0, 19.0]
    assert len(b.answers) == 1
    assert c.failed == "out of memory"


def test_each_is_asked_twice_and_the_second_answer_kept():
    asked = []

    class Fake:
        def ask(self, **request):
            asked.append(request)
            return {"call": len(asked)}

    one = Contestant("a", Fake(), {"do": "x"})
    one.go(seed=3)
    assert asked == [{"do": "x", "seed": 3}] * 2
    assert one.answers == [{"call": 2}]


def test_a_loop_goes_a_step_at_a_time():
    stepper, seen = Stepper(), []

    def loop():
        for batch in stepper.batches("prompts"):
            seen.append(batch)
            if len(seen) == 3:
                raise ValueError("enough")

    stepper.start(loop)
    assert seen == []
    stepper.step()
    assert seen == ["prompts"]
    stepper.step()
    with pytest.raises(ValueError, match="enough"):
        stepper.step()
