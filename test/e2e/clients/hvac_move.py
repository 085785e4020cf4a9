"""What a workload with hvac sees at a server: TestMoveIn compares it before and after a move."""

import json
import os
import sys

import hvac
from hvac import exceptions

about = json.load(sys.stdin)
seen = {}


def client():
    return hvac.Client(url=os.environ["VAULT_ADDR"], namespace=about["namespace"] or None, verify=os.environ["VAULT_CACERT"] or True)


def look(who, by, auth):
    kv = by.secrets.kv.v2
    seen[who] = {"policies": auth["policies"], "ttl": auth["lease_duration"]}
    for name in about["names"]:
        found = kv.read_secret_version(path=name, mount_point=about["mount"], raise_on_deleted_version=True)["data"]
        seen[who][name] = [found["data"], found["metadata"]]
    seen[who]["list"] = kv.list_secrets(path="", mount_point=about["mount"])["data"]["keys"]
    try:
        kv.create_or_update_secret(path="not-mine", secret={"a": "b"}, mount_point=about["mount"])
        raise AssertionError("a write was allowed")
    except exceptions.Forbidden:
        pass


machine, person = client(), client()
look("machine", machine, machine.auth.approle.login(about["role_id"], about["secret_id"], mount_point="machines")["auth"])
look("person", person, person.auth.userpass.login(about["username"], about["password"], mount_point="people")["auth"])
json.dump(seen, sys.stdout, sort_keys=True)
