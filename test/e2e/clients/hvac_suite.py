"""hvac_suite.py DIRECTORY: runs hvac's own suite, unpacked at DIRECTORY, against Coffer, and compares the outcome with hvac_suite.json.

It fails if a test fails that is not listed there, if a listed one passes, or if the numbers differ. With -update it writes the numbers and
the new failures, which want a reason, to that file.
"""

import json
import os
import sys

import pytest

here = os.path.dirname(os.path.abspath(__file__))
data = os.path.join(here, "hvac_suite.json")


class Outcomes:
    def __init__(self):
        self.of, self.why = {}, {}

    def pytest_runtest_logreport(self, report):
        test = report.nodeid.removeprefix("tests/integration_tests/")
        if report.failed:
            self.of[test], self.why[test] = "failed", report.longreprtext
        elif report.skipped:
            self.of.setdefault(test, "skipped")
        elif report.when == "call":
            self.of.setdefault(test, "passed")

    def named(self, outcome):
        return sorted(test for test, got in self.of.items() if got == outcome)


def main():
    update = sys.argv[1] == "-update"
    with open(data) as file:
        suite = json.load(file)
    os.chdir(sys.argv[-1])
    os.makedirs("tests/config_files/generated", exist_ok=True)
    sys.path.insert(0, os.getcwd())
    outcomes = Outcomes()
    modules = ["tests/integration_tests/" + module for module in suite["modules"]]
    options = ["-q", "--no-header", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider", "-p", "no:warnings", "-n", "4", "-r", "N"]
    for group in suite["left_out"]:
        options += ["--deselect=tests/integration_tests/" + test for test in group["tests"]]
    pytest.main(options + modules, plugins=[outcomes])

    listed = {test for group in suite["failures"] for test in group["tests"]}
    failed = outcomes.named("failed")
    new, mended = sorted(set(failed) - listed), sorted(listed - set(failed))
    numbers = {kind: len(outcomes.named(kind)) for kind in ("passed", "failed", "skipped")}
    if update:
        for group in suite["failures"]:
            group["tests"] = [test for test in group["tests"] if test not in mended]
        suite["failures"] = [group for group in suite["failures"] if group["tests"]]
        if new:
            suite["failures"].append({"reason": "", "tests": new})
        suite["numbers"] = numbers
        with open(data, "w") as file:
            json.dump(suite, file, indent="\t")
            file.write("\n")
        return 0
    for test in new:
        print(f"not ok hvac's suite: {test} fails\n{outcomes.why[test][-2000:]}")
    for test in mended:
        print(f"not ok hvac's suite: {test} is listed in hvac_suite.json, and does not fail any more: remove it there")
    if new or mended:
        return 1
    if numbers != suite["numbers"]:
        print(f"not ok hvac's suite: hvac_suite.json has {suite['numbers']}, and now they are {numbers}")
        return 1
    print(f"ok hvac's suite: {numbers['passed']} passed, {numbers['failed']} fail as listed, {numbers['skipped']} skipped")
    return 0


sys.exit(main())
