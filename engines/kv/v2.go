package kv

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

func newRouterV2() *engines.Router {
	r := engines.NewRouter()
	engines.On(r, engines.Read, "config", "Read the mount's settings.", 0, readConfig).
		Returns("cas_required: boolean, delete_version_after, max_versions: integer")
	engines.On(r, engines.Update, "config", "Change the mount's settings; what is not given stays.", 0, writeConfig)

	engines.On(r, engines.Read, "data/{path...}", "Read a version of a secret.", 0, readData).
		Returns(`data: {*: any}?, metadata: {created_time, custom_metadata: {*: string}?, deletion_time, destroyed: boolean, version: integer}`)
	engines.On(r, engines.Update, "data/{path...?}", "Write a new version of a secret.", 0, writeData).
		Returns("created_time, custom_metadata: {*: string}?, deletion_time, destroyed: boolean, version: integer").Exists = recordExists
	engines.On(r, engines.Patch, "data/{path...?}", "Write a new version: the latest one with a merge patch applied.", 0, patchData).
		Returns("created_time, custom_metadata: {*: string}?, deletion_time, destroyed: boolean, version: integer")
	engines.On(r, engines.Delete, "data/{path...?}", "Soft-delete the latest version of a secret.", 0, deleteLatest)
	engines.On(r, engines.Read, "subkeys/{path...}", "Read the structure of a secret, without its values.", 0, readSubkeys).
		Returns(`metadata: {created_time, custom_metadata: {*: string}?, deletion_time, destroyed: boolean, version: integer}, subkeys: {*:
			any}?`)

	engines.On(r, engines.Update, "delete/{path...?}", "Soft-delete versions of a secret.", engines.FreesSpace, deleteVersions)
	engines.On(r, engines.Update, "undelete/{path...?}", "Take back the soft deletion of versions.", 0, undeleteVersions)
	engines.On(r, engines.Update, "destroy/{path...?}", "Remove versions for good.", engines.FreesSpace, destroyVersions)

	engines.On(r, engines.Scan, "metadata/{path...}", "List all secrets below a folder.", 0, scanMetadata).Returns("keys: [string]")
	engines.On(r, engines.List, "metadata/{path...}", "List the secrets and folders in a folder.", 0, listMetadata).
		Returns("keys: [string]")
	engines.On(r, engines.Read, "metadata/{path...}", "Read a secret's metadata and versions.", 0, readMetadata).
		Returns(`cas_required: boolean, created_time, current_version: integer, custom_metadata: {*: string}?, delete_version_after,
			max_versions: integer, oldest_version: integer, updated_time, versions: {*: {created_time, deletion_time, destroyed:
			boolean}}`)
	engines.On(r, engines.Update, "metadata/{path...?}", "Change a secret's settings; what is not given stays.", 0, writeMetadata).Exists = recordExists
	engines.On(r, engines.Patch, "metadata/{path...?}", "Change a secret's settings with a merge patch.", 0, patchMetadata)
	engines.On(r, engines.Delete, "metadata/{path...?}", "Remove a secret with all its versions and metadata.", 0, deleteMetadata)

	engines.On(r, engines.Update, "import", "Create secrets with the versions, times and states that they have at another server, or extend those of an earlier import.", engines.Sudo|engines.Strict, importSecrets).
		Returns(`secrets: {*: {reason, status, versions_dropped: integer}}, totals: {conflict: integer, created: integer, extended: integer,
			incomplete: integer, overwritten: integer, unchanged: integer}`)
	return r
}

func recordExists(ctx context.Context, req *engines.Request) (bool, error) {
	r, err := getRecord(ctx, req.Mount.Storage, req.Param("path"))
	return r != nil, err
}
