import os
import time

import judges


def judge(name):
    if name == "dies":
        os._exit(3)
    if name == "fails":
        raise KeyError(name)
    if name == "hangs":
        time.sleep(60)
    return judges.Verdict(name, "op", "agrees")


def test_every_case_has_a_verdict(monkeypatch):
    monkeypatch.setattr(judges, "_SECONDS", 1)
    verdicts = {v.name: v for v in judges.judge_all(["a", "dies", "fails", "hangs", "z"], judge, 2)}
    assert {name: verdict.status for name, verdict in verdicts.items()} == {
        "a": "agrees",
        "dies": "wrong",
        "fails": "wrong",
        "hangs": "wrong",
        "z": "agrees",
    }
    assert verdicts["dies"].reason == "process: exit status 3"
    assert verdicts["hangs"].reason == "process: over 1 s"
