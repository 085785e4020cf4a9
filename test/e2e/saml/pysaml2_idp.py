"""pysaml2 as the identity provider, which signs with xmlsec1, here with an elliptic curve.

pysaml2_idp.py KEY CERTIFICATE SP-METADATA USERS: the last two are files, the users JSON as in samlp.js. It serves on a free
port of loopback until it is terminated.
"""

import html
import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer

import saml2.entity
import saml2.xmldsig
from saml2 import BINDING_HTTP_POST, BINDING_HTTP_REDIRECT
from saml2.authn_context import PASSWORDPROTECTEDTRANSPORT
from saml2.config import IdPConfig
from saml2.metadata import entity_descriptor
from saml2.saml import NAMEID_FORMAT_EMAILADDRESS, NameID
from saml2.server import Server

# xmlsec1 can sign with these keys; pysaml2 only does not list the algorithm.
ECDSA = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256"
saml2.entity.SIG_ALLOWED_ALG += (("SIG_ECDSA_SHA256", ECDSA),)

key, certificate, sp_metadata, user_file = sys.argv[1:]
with open(user_file) as f:
    users = json.load(f)

FORM = """<!doctype html><title>Log in</title><h1>Log in to pysaml2</h1><p role="alert">%s</p>
<form method="post" action="%s"><label>Name <input name="username"></label>
<label>Password <input name="password" type="password"></label><button>Log in</button></form>"""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, status, text, kind="text/html"):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def form(self, status, problem=""):
        self.answer(status, FORM % (problem, html.escape(self.path)))

    def do_GET(self):
        if self.path == "/metadata":
            self.answer(200, str(entity_descriptor(idp.config)), "application/samlmetadata+xml")
        elif self.path.startswith("/sso?"):
            self.form(200)
        else:
            self.answer(404, "")

    def do_POST(self):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        size = int(self.headers["Content-Length"])
        given = dict(urllib.parse.parse_qsl(self.rfile.read(size).decode()))
        user = users.get(given.get("username"))
        if user is None or user["password"] != given.get("password"):
            self.form(401, "Wrong name or password.")
            return
        request = idp.parse_authn_request(query["SAMLRequest"], BINDING_HTTP_REDIRECT).message
        response = idp.create_authn_response(
            user["attributes"],
            in_response_to=request.id,
            destination=request.assertion_consumer_service_url,
            sp_entity_id=request.issuer.text,
            name_id=NameID(format=NAMEID_FORMAT_EMAILADDRESS, text=user["attributes"]["mail"][0]),
            authn={"class_ref": PASSWORDPROTECTEDTRANSPORT, "authn_auth": idp.config.entityid},
            sign_response=True,
            sign_assertion=True,
            sign_alg=ECDSA,
            digest_alg=saml2.xmldsig.DIGEST_SHA256,
        )
        acs = request.assertion_consumer_service_url
        page = idp.apply_binding(BINDING_HTTP_POST, str(response), acs, query["RelayState"], response=True)
        self.answer(200, page["data"])


server = HTTPServer(("127.0.0.1", 0), Handler)
url = "http://127.0.0.1:%d" % server.server_port
config = IdPConfig()
config.load(
    {
        "entityid": url + "/metadata",
        "key_file": key,
        "cert_file": certificate,
        "metadata": {"local": [sp_metadata]},
        "service": {
            "idp": {
                "endpoints": {"single_sign_on_service": [(url + "/sso", BINDING_HTTP_REDIRECT)]},
                "policy": {"default": {"name_form": "urn:oasis:names:tc:SAML:2.0:attrname-format:basic", "entity_categories": []}},
            }
        },
    }
)
idp = Server(config=config)
print("ready at " + url, flush=True)
server.serve_forever()
