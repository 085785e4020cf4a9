package repohost

import (
	"context"
	"errors"
	"net/http"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Redeploy implements destination.Redeployer: it starts a workflow.
func (d *dest) Redeploy(ctx context.Context) error {
	c := &d.config
	if c.Workflow == "" {
		return nil
	}
	owner := c.RepositoryOwner
	if c.SecretsLocation == inOrganization {
		owner = c.Organization
	}
	resp, err := d.client.do(ctx, call{
		method: http.MethodPost, path: "repos/" + owner + "/" + c.RepisitoryName + "/actions/workflows/" + c.Workflow + "/dispatches",
		body: map[string]string{"ref": c.Ref}, writes: true,
	})
	e, ok := errors.AsType[*destination.Error](err)
	if !ok || resp == nil || e.Code == destination.Throttled {
		return err
	}
	out := *e
	switch with := d.client.credential(); resp.Status {
	case http.StatusForbidden:
		out.Text = "GitHub does not start the workflow " + c.Workflow + ": " + with + " needs the permission Actions (read and write) of the repository"
	case http.StatusNotFound:
		out.Text = "the workflow " + c.Workflow + " is not there, or " + with + " may not see it: check dispatch_workflow, and the permission Actions (read and write)"
	case http.StatusUnprocessableEntity:
		out.Text = "GitHub does not start the workflow " + c.Workflow + " on " + c.Ref + ": it needs the trigger workflow_dispatch without required inputs, and the branch or tag has to be there"
	}
	return &out
}
