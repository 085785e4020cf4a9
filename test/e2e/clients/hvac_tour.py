"""A tour with hvac: from a server that nobody has initialized to what a team does with it."""

import base64
import os
import time

import hvac
from hvac import exceptions

ADDRESS = os.environ["VAULT_ADDR"]
count = 0


def client(token=None, namespace=None):
    return hvac.Client(url=ADDRESS, token=token, namespace=namespace)


def check(name):
    """Runs a function as one check, at once. A failed assertion ends the tour."""

    def run(function):
        global count
        function()
        count += 1
        print(f"ok {count} hvac: {name}", flush=True)

    return run


def refused(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError("it was allowed")


def until(condition, what):
    """Asks again and again: the server works in the background."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what


nobody = client()
root = client()
keys = []


@check("a new server is not initialized")
def _():
    assert nobody.sys.is_initialized() is False


@check("initialize and unseal")
def _():
    out = nobody.sys.initialize(secret_shares=3, secret_threshold=2)
    keys.extend(out["keys_base64"])
    root.token = out["root_token"]
    assert nobody.sys.is_sealed() is True
    nobody.sys.submit_unseal_keys(keys[:2])
    assert nobody.sys.is_sealed() is False
    until(lambda: nobody.sys.read_leader_status()["is_self"], "no leader")
    until(lambda: nobody.sys.read_health_status().status_code == 200, "it is not active")
    assert root.is_authenticated()


@check("KV version 2")
def _():
    root.sys.enable_secrets_engine("kv", path="kv", options={"version": "2"})
    assert root.sys.list_mounted_secrets_engines()["data"]["kv/"]["options"]["version"] == "2"
    kv = root.secrets.kv.v2
    kv.create_or_update_secret("app", {"user": "shop", "password": "one"}, mount_point="kv")
    kv.create_or_update_secret("app", {"user": "shop", "password": "two"}, cas=1, mount_point="kv")
    read = kv.read_secret_version("app", mount_point="kv", raise_on_deleted_version=True)
    assert read["data"]["data"] == {"user": "shop", "password": "two"}
    assert read["data"]["metadata"]["version"] == 2
    old = kv.read_secret_version("app", version=1, mount_point="kv", raise_on_deleted_version=True)
    assert old["data"]["data"]["password"] == "one"
    assert "check-and-set" in refused(exceptions.InvalidRequest, kv.create_or_update_secret, "app", {}, cas=1, mount_point="kv")


@check("KV version 2: patch, delete, destroy")
def _():
    kv = root.secrets.kv.v2
    kv.patch("app", {"password": "three"}, mount_point="kv")
    kv.update_metadata("app", max_versions=7, custom_metadata={"owner": "ann"}, mount_point="kv")
    metadata = kv.read_secret_metadata("app", mount_point="kv")["data"]
    assert (metadata["max_versions"], metadata["custom_metadata"]) == (7, {"owner": "ann"})
    assert kv.list_secrets("", mount_point="kv")["data"]["keys"] == ["app"]
    kv.delete_latest_version_of_secret("app", mount_point="kv")
    refused(exceptions.InvalidPath, kv.read_secret_version, "app", mount_point="kv", raise_on_deleted_version=True)
    deleted = kv.read_secret_version("app", mount_point="kv", raise_on_deleted_version=False)
    assert deleted["data"]["metadata"]["deletion_time"] != ""
    kv.undelete_secret_versions("app", [3], mount_point="kv")
    kv.destroy_secret_versions("app", [1], mount_point="kv")
    assert kv.read_secret_metadata("app", mount_point="kv")["data"]["versions"]["1"]["destroyed"] is True
    assert kv.read_secret_version("app", mount_point="kv", raise_on_deleted_version=True)["data"]["data"]["password"] == "three"


@check("policies")
def _():
    root.sys.create_or_update_policy("reader", 'path "kv/data/app" { capabilities = ["read"] }')
    assert "reader" in root.sys.list_policies()["data"]["policies"]
    assert "kv/data/app" in root.sys.read_policy("reader")["data"]["rules"]
    root.sys.create_or_update_acl_policy("typed", {"path": {"kv/data/x": {"capabilities": ["read"]}}})
    assert "typed" in root.sys.list_acl_policies()["data"]["keys"]
    root.sys.delete_acl_policy("typed")


@check("tokens")
def _():
    auth = root.auth.token.create(policies=["reader"], ttl="1h", display_name="app")["auth"]
    assert auth["policies"] == ["default", "reader"]
    mine = client(auth["client_token"])
    assert mine.secrets.kv.v2.read_secret_version("app", mount_point="kv", raise_on_deleted_version=True)["data"]["data"]["user"] == "shop"
    refused(exceptions.Forbidden, mine.secrets.kv.v2.create_or_update_secret, "app", {}, mount_point="kv")
    assert mine.auth.token.lookup_self()["data"]["display_name"] == "token-app"
    assert mine.auth.token.renew_self(increment=1800)["auth"]["lease_duration"] == 1800
    assert root.auth.token.renew(auth["client_token"], increment=600)["auth"]["lease_duration"] == 600
    assert root.auth.token.lookup_accessor(auth["accessor"])["data"]["accessor"] == auth["accessor"]
    assert auth["accessor"] in root.auth.token.list_accessors()["data"]["keys"]
    assert root.sys.get_capabilities(["kv/data/app"], token=auth["client_token"])["data"]["kv/data/app"] == ["read"]
    root.auth.token.revoke_accessor(auth["accessor"])
    assert mine.is_authenticated() is False
    assert root.auth.token.create_orphan()["auth"]["orphan"] is True


@check("roles of tokens")
def _():
    root.auth.token.create_or_update_role("ci", allowed_policies=["reader"], orphan=True, token_period="1h")
    assert root.auth.token.list_roles()["data"]["keys"] == ["ci"]
    assert root.auth.token.read_role("ci")["data"]["token_period"] == 3600
    auth = root.auth.token.create(role_name="ci", policies=["reader"])["auth"]
    assert (auth["lease_duration"], auth["orphan"]) == (3600, True)
    root.auth.token.delete_role("ci")


@check("userpass")
def _():
    root.sys.enable_auth_method("userpass", path="people")
    assert "people/" in root.sys.list_auth_methods()["data"]
    root.sys.tune_auth_method("people", default_lease_ttl="10m", max_lease_ttl="1h")
    assert root.sys.read_auth_method_tuning("people")["data"]["default_lease_ttl"] == 600
    userpass = root.auth.userpass
    userpass.create_or_update_user("ann", password="sesame", policies="reader", mount_point="people")
    assert userpass.list_user(mount_point="people")["data"]["keys"] == ["ann"]
    ann = client()
    auth = ann.auth.userpass.login("ann", "sesame", mount_point="people")["auth"]
    assert (auth["policies"], auth["lease_duration"]) == (["default", "reader"], 600)
    assert ann.is_authenticated()
    userpass.update_password_on_user("ann", "changed", mount_point="people")
    assert "invalid username or password" in refused(
        exceptions.InvalidRequest, client().auth.userpass.login, "ann", "sesame", mount_point="people"
    )
    userpass.delete_user("ann", mount_point="people")


@check("approle")
def _():
    root.sys.enable_auth_method("approle")
    approle = root.auth.approle
    approle.create_or_update_approle("app", token_policies=["reader"], secret_id_num_uses=1)
    assert approle.list_roles()["data"]["keys"] == ["app"]
    role_id = approle.read_role_id("app")["data"]["role_id"]
    made = approle.generate_secret_id("app", metadata={"host": "h1"})["data"]
    assert approle.read_secret_id("app", made["secret_id"])["data"]["metadata"] == {"host": "h1"}
    app = client()
    auth = app.auth.approle.login(role_id, made["secret_id"])["auth"]
    assert auth["metadata"] == {"role_name": "app", "host": "h1"}
    refused(exceptions.InvalidRequest, client().auth.approle.login, role_id, made["secret_id"])
    made = approle.generate_secret_id("app")["data"]
    assert approle.list_secret_id_accessors("app")["data"]["keys"] == [made["secret_id_accessor"]]
    approle.destroy_secret_id_accessor("app", made["secret_id_accessor"])
    approle.create_custom_secret_id("app", "my-own")
    client().auth.approle.login(role_id, "my-own")
    approle.delete_role("app")


@check("wrapping")
def _():
    wrapped = root.sys.wrap({"a": "b"}, ttl="60s")["wrap_info"]["token"]
    assert root.sys.unwrap(wrapped)["data"] == {"a": "b"}
    refused(exceptions.VaultError, root.sys.unwrap, wrapped)
    info = root.auth.token.create(policies=["reader"], wrap_ttl="60s")["wrap_info"]
    unwrapped = client(info["token"]).sys.unwrap()
    assert unwrapped["auth"]["accessor"] == info["wrapped_accessor"]


@check("identity")
def _():
    accessor = root.sys.list_auth_methods()["data"]["people/"]["accessor"]
    identity = root.secrets.identity
    entity = identity.create_or_update_entity("ann", policies=["reader"], metadata={"team": "ops"})["data"]["id"]
    identity.create_or_update_entity_alias("ann", canonical_id=entity, mount_accessor=accessor)
    found = identity.lookup_entity(alias_name="ann", alias_mount_accessor=accessor)["data"]
    assert (found["id"], found["metadata"]) == (entity, {"team": "ops"})
    group = identity.create_or_update_group("ops", member_entity_ids=[entity], policies=["reader"])["data"]["id"]
    assert identity.read_entity(entity)["data"]["direct_group_ids"] == [group]
    assert identity.lookup_group(name="ops")["data"]["id"] == group
    identity.delete_group(group)
    identity.delete_entity(entity)


@check("namespaces")
def _():
    root.sys.create_namespace("team")
    assert root.sys.list_namespaces()["data"]["keys"] == ["team/"]
    team = client(root.token, "team")
    team.sys.enable_secrets_engine("kv", path="kv", options={"version": "1"})
    team.secrets.kv.v1.create_or_update_secret("a", {"x": "1"}, mount_point="kv", method="POST")
    assert team.secrets.kv.v1.read_secret("a", mount_point="kv")["data"] == {"x": "1"}
    team.sys.create_or_update_policy("all", 'path "kv/*" { capabilities = ["read"] }')
    token = team.auth.token.create(policies=["all"])["auth"]["client_token"]
    assert client(token, "team").secrets.kv.v1.read_secret("a", mount_point="kv")["data"] == {"x": "1"}
    refused(exceptions.Forbidden, client(token).sys.list_mounted_secrets_engines)
    root.sys.delete_namespace("team")

    def gone():
        try:
            return "team/" not in root.sys.list_namespaces()["data"]["keys"]
        except exceptions.InvalidPath:
            return True

    until(gone, "it is still there")


@check("quotas")
def _():
    root.sys.create_or_update_quota("slow", 5, path="kv/", interval="10m")
    assert root.sys.read_quota("slow")["data"]["rate"] == 5
    assert root.sys.list_quotas()["data"]["keys"] == ["slow"]
    root.sys.delete_quota("slow")


@check("destinations of secret sync")
def _():
    path = "sys/sync/destinations/cloud1-sm/aws"
    fields = {"access_key_id": "AKIAEXAMPLEEXAMPLE00", "secret_access_key": "not-a-real-one", "region": "eu-central-1"}
    made = root.write_data(path, data=fields)["data"]
    shown = {"access_key_id": "*****", "secret_access_key": "*****", "region": "eu-central-1"}
    assert (made["type"], made["name"]) == ("cloud1-sm", "aws")
    assert shown.items() <= made["connection_details"].items()
    assert root.read(path)["data"] == made
    listed = root.list("sys/sync/destinations")["data"]
    assert listed.pop("health")["cloud1-sm/aws"]["circuit"] == "closed"
    assert listed == {
        "keys": ["cloud1-sm/"], "key_info": {"cloud1-sm/": ["aws"]}, "total_destinations": 1,
    }
    assert root.list("sys/sync/destinations/cloud1-sm")["data"]["keys"] == ["aws"]
    merge = {"Content-Type": "application/merge-patch+json"}
    changed = root.adapter.request("patch", f"/v1/{path}", headers=merge, json={"custom_tags": {"team": "ops"}})["data"]
    assert changed["options"]["custom_tags"] == {"team": "ops"}
    assert changed["connection_details"] == made["connection_details"]
    assert "access_key_id" in refused(exceptions.InvalidRequest, root.write_data, path, data={"access_key_id": "@file"})
    assert root.read("sys/sync/destinations/aws-sm/aws")["data"]["type"] == "aws-sm"  # the vendor's name of the type
    refused(exceptions.InvalidRequest, root.write_data, "sys/sync/destinations/nowhere/aws", data=fields)


@check("associations of secret sync")
def _():
    path = "sys/sync/destinations/cloud1-sm/aws"
    accessor = root.sys.list_mounted_secrets_engines()["data"]["kv/"]["accessor"]
    assert root.read(f"{path}/associations")["data"]["associated_secrets"] == {}
    answer = root.write_data(f"{path}/associations/set", data={"mount": "kv", "secret_name": "app"})["data"]
    assert (answer["store_type"], answer["store_name"]) == ("cloud1-sm", "aws")
    assert list(answer["associated_secrets"]) == [f"{accessor}/app"]

    def entry():
        return root.read(f"{path}/associations")["data"]["associated_secrets"][f"{accessor}/app"]

    until(lambda: entry()["sync_status"] == "EXTERNAL_SERVICE_ERROR", "nobody is there, and the status does not tell it")
    assert (entry()["accessor"], entry()["secret_name"], entry()["sub_key"]) == (accessor, "app", "")
    assert root.read("sys/sync/associations/kv/app")["data"]["associated_destinations"]["cloud1-sm/aws"]["type"] == "cloud1-sm"
    totals = root.list("sys/sync/associations")["data"]
    assert (totals["total_associations"], totals["total_secrets"]) == (1, 1)
    assert "associations" in refused(exceptions.InvalidRequest, root.delete, path)
    gone = root.write_data(f"{path}/associations/remove", data={"mount": "kv", "name": "app"})["data"]
    assert gone["associated_secrets"][f"{accessor}/app"]["sync_status"] == "UNSYNCED"
    root.delete(path)
    assert root.read(path) is None


@check("audit")
def _():
    root.sys.enable_audit_device("file", path="off", options={"file_path": "discard"})
    assert "off/" in root.sys.list_enabled_audit_devices()["data"]
    assert root.sys.calculate_hash("off", "text")["data"]["hash"].startswith("hmac-sha256:")
    root.sys.disable_audit_device("off")


@check("rotate, rekey, and a root token by key shares")
def _():
    term = root.sys.get_encryption_key_status()["data"]["term"]
    root.sys.rotate_encryption_key()
    assert root.sys.get_encryption_key_status()["data"]["term"] == term + 1
    nonce = root.sys.start_rekey(secret_shares=3, secret_threshold=2)["nonce"]
    keys[:] = root.sys.rekey_multi(keys[:2], nonce=nonce)["keys_base64"]
    assert len(keys) == 3
    attempt = root.adapter.put("/v1/sys/generate-root/attempt", json={})
    for key in keys[:2]:
        out = root.sys.generate_root(key, attempt["nonce"])
    encoded = out["encoded_token"]
    hidden = base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    token = bytes(a ^ b for a, b in zip(hidden, attempt["otp"].encode(), strict=True)).decode()
    assert client(token).auth.token.lookup_self()["data"]["policies"] == ["root"]
    client(token).auth.token.revoke_self()


@check("seal and unseal with the new keys")
def _():
    root.sys.seal()
    assert nobody.sys.is_sealed() is True
    nobody.sys.submit_unseal_keys(keys[:2])
    assert nobody.sys.is_sealed() is False
