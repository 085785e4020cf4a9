package config

import (
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/config/initialize"
	"github.com/hashicorp/hcl/hcl/ast"
)

// audit takes audit { … }, which says what devices may do, and audit "file" "path" { … }, which is a device.
func (d *decoder) audit(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		_, list := d.block(item)
		switch len(item.Keys) {
		case 1:
			d.object("audit", list, map[string]field{"file_roots": texts(&c.Audit.FileRoots)})
			return
		case 3:
		default:
			d.problem(item.Pos(), "an audit device has a type and a path: audit \"file\" \"log\" { … }")
			return
		}
		a := AuditDevice{Type: strings.Trim(item.Keys[1].Token.Text, `"`), Path: strings.Trim(strings.Trim(item.Keys[2].Token.Text, `"`), "/"), Options: map[string]string{}}
		d.object("audit.device", list, map[string]field{
			"description": text1(&a.Description),
			"options": func(d *decoder, item *ast.ObjectItem) {
				_, list := d.block(item)
				for _, o := range list.Items {
					if v, _, ok := d.literal(o); ok {
						a.Options[keyOf(o)] = v
					}
				}
			},
		})
		for _, other := range c.Audit.Devices {
			if other.Path == a.Path {
				d.problem(item.Pos(), "there are two audit devices at %q", a.Path)
			}
		}
		c.Audit.Devices = append(c.Audit.Devices, a)
	}
}

func (d *decoder) initialize(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		requests, err := initialize.Parse(item)
		if err != nil {
			d.problem(item.Pos(), "%v", err)
		}
		c.Initialize = append(c.Initialize, requests...)
	}
}
