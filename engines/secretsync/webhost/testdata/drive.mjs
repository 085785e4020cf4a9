// Drives a server with Vercel's own SDK, which checks every answer against its schemas: node drive.mjs <url> <token>
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const { Vercel } = await import(pathToFileURL(createRequire(process.cwd() + "/").resolve("@vercel/sdk")));
const [serverURL, bearerToken] = process.argv.slice(2);
const { projects } = new Vercel({ serverURL, bearerToken, retryConfig: { strategy: "none" } });
const at = { idOrName: "prj_1", teamId: "team_1" };
const variable = (key, type, ...target) => ({ key, value: "v1", type, target, comment: "of the SDK" });

const one = await projects.createProjectEnv({ ...at, requestBody: variable("ONE", "sensitive", "production", "preview") });
assert.equal(one.failed.length, 0);
assert.equal(one.created.key, "ONE");

const two = await projects.createProjectEnv({ ...at, requestBody: [variable("TWO", "encrypted", "development"), variable("ONE", "encrypted", "production")] });
assert.deepEqual(two.created.map((v) => v.key), ["TWO"]);
assert.equal(two.failed.length, 1);

await assert.rejects(projects.createProjectEnv({ ...at, requestBody: variable("ONE", "encrypted", "preview") }), (e) => e.statusCode === 403);
await assert.rejects(projects.createProjectEnv({ ...at, requestBody: variable("X", "sensitive", "development") }), (e) => e.statusCode === 400);
await assert.rejects(projects.filterProjectEnvs({ idOrName: "prj_1" }), (e) => e.statusCode === 404);

const edited = await projects.editProjectEnv({ ...at, id: one.created.id, requestBody: { value: "v2", target: ["production"], comment: "changed" } });
assert.equal(edited.comment, "changed");
await assert.rejects(projects.editProjectEnv({ ...at, id: "nothing", requestBody: { value: "v2" } }), (e) => e.statusCode === 404);

const { envs } = await projects.filterProjectEnvs(at);
assert.deepEqual(envs.map((v) => [v.key, v.type, v.target]), [["ONE", "sensitive", ["production"]], ["TWO", "encrypted", ["development"]]]);

const removed = await projects.removeProjectEnv({ ...at, id: two.created[0].id });
assert.equal(removed.key, "TWO");
assert.equal((await projects.filterProjectEnvs(at)).envs.length, 1);
console.log("ok");
