import json
import os

from exporter.common.result_log import ResultLog, digest_files


def test_a_log_goes_on_and_begins_anew_with_another_digest(tmp_path):
    path = tmp_path / "deep" / "log.jsonl"
    log = ResultLog(path, "a")
    assert log.results == []
    log.add({"case": 1})
    log.add({"case": 2, "text": "é\n"})
    assert ResultLog(path, "a").results == [{"case": 1}, {"case": 2, "text": "é\n"}]
    assert ResultLog(path, "b").results == []
    assert ResultLog(path, "a").results == []


def test_a_line_that_was_cut_off_costs_that_line_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    log = ResultLog(path, "a")
    for number in range(3):
        log.add({"case": number})
    path.write_text(path.read_text()[:-3])
    log = ResultLog(path, "a")
    assert [result["case"] for result in log.results] == [0, 1]
    log.add({"case": 9})
    assert [result["case"] for result in ResultLog(path, "a").results] == [0, 1, 9]
    path.write_text("a\n" + json.dumps([1]) + "\nno JSON\n")
    assert ResultLog(path, "a").results == []


def test_the_digest_sees_what_results_depend_on(tmp_path):
    code = tmp_path / "code"
    (code / "deep").mkdir(parents=True)
    (code / "deep" / "a.py").write_text("1")
    (code / "b.py").write_text("2")
    digests = [digest_files(["torch 2"], [code])]
    (code / "deep" / "c.pyc").write_text("compiled")
    os.utime(code / "b.py", (0, 0))
    assert digest_files(["torch 2"], [code]) == digests[0]
    digests.append(digest_files(["torch 3"], [code]))
    (code / "b.py").write_text("3")
    digests.append(digest_files(["torch 2"], [code]))
    (code / "b.py").rename(code / "d.py")
    digests.append(digest_files(["torch 2"], [code]))
    (code / "deep" / "a.py").unlink()
    digests.append(digest_files(["torch 2"], [code]))
    digests.append(digest_files(["torch ", "2"], [code]))
    assert len({*digests}) == len(digests)
