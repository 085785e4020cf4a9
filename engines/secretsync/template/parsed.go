package template

import (
	"sync"

	"github.com/coffer-project/coffer/engines/nametemplate"
)

// parsed has the templates that are in use, by their text: there are few of them, and each names many secrets.
var parsed cache

// maxParsed bounds them.
const maxParsed = 1000

// cache is safe for concurrent use; the zero value is empty.
type cache struct {
	mu     sync.Mutex
	byText map[string]*nametemplate.Template
}

func (c *cache) parse(text string) (*nametemplate.Template, error) {
	c.mu.Lock()
	t := c.byText[text]
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := nametemplate.Parse(text, fields, nil)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byText == nil || len(c.byText) >= maxParsed {
		c.byText = map[string]*nametemplate.Template{}
	}
	c.byText[text] = t
	return t, nil
}
