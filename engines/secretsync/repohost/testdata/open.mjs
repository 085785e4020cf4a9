// Opens the boxes on standard input with libsodium: {"public", "private", "sealed": [...]}, all base64.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const sodium = createRequire(process.cwd() + "/")("libsodium-wrappers");
await sodium.ready;
const { public: pub, private: priv, sealed } = JSON.parse(readFileSync(0, "utf8"));
const bytes = (text) => sodium.from_base64(text, sodium.base64_variants.ORIGINAL);
const opened = sealed.map((box) =>
  sodium.to_base64(sodium.crypto_box_seal_open(bytes(box), bytes(pub), bytes(priv)), sodium.base64_variants.ORIGINAL));
console.log(JSON.stringify(opened));
