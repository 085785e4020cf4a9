package files

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// parseJSON reads an object of secrets by name.
func parseJSON(raw []byte) (map[string]map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var members map[string]any
	if err := d.Decode(&members); err != nil {
		return nil, errors.New("it is not a JSON object")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is something behind the JSON object")
	}
	out := map[string]map[string]any{}
	for name, member := range members {
		secret, ok := member.(map[string]any)
		if !ok {
			return nil, fmt.Errorf(`the member %q is not an object: the file has secrets by name, as in {"app/db": {"password": "…"}}`, name)
		}
		out[name] = secret
	}
	return out, nil
}

// manifest is a Secret of Kubernetes, or a list of them.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
	Data       map[string]string `yaml:"data"`
	StringData map[string]string `yaml:"stringData"`
	Items      []manifest        `yaml:"items"`
}

// parseKubernetes reads manifests of Secrets, as kubectl prints them. The name of a secret is NAMESPACE/NAME, or NAME.
func parseKubernetes(raw []byte) (map[string]map[string]any, error) {
	out := map[string]map[string]any{}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		var m manifest
		if err := d.Decode(&m); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, errors.New("it is not YAML, or a field of a manifest has another type") // the text of the error may have values
		}
		if m.Kind == "" && m.APIVersion == "" {
			continue // nothing between two lines of dashes
		}
		if err := m.addTo(out); err != nil {
			return nil, err
		}
	}
}

func (m *manifest) addTo(out map[string]map[string]any) error {
	if m.Kind == "List" || m.Kind == "SecretList" {
		for i := range m.Items {
			if err := m.Items[i].addTo(out); err != nil {
				return err
			}
		}
		return nil
	}
	name := strings.TrimPrefix(m.Metadata.Namespace+"/"+m.Metadata.Name, "/")
	switch {
	case m.Kind != "Secret" || m.APIVersion != "v1":
		return fmt.Errorf("it has an object of the kind %q: only Secrets are imported", m.Kind)
	case m.Metadata.Name == "":
		return errors.New("a Secret has no name")
	case out[name] != nil:
		return fmt.Errorf("the Secret %s is there twice", name)
	}
	secret := map[string]any{}
	for key, encoded := range m.Data {
		text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
		if err != nil {
			return fmt.Errorf("the Secret %s: the key %q is not base64", name, key)
		}
		if !utf8.Valid(text) {
			return fmt.Errorf("the Secret %s: the key %q is not text: a secret here has texts only", name, key)
		}
		secret[key] = string(text)
	}
	for key, text := range m.StringData {
		secret[key] = text
	}
	out[name] = secret
	return nil
}

// writeKubernetes writes manifests.
func writeKubernetes(secrets map[string]map[string]any) ([]byte, error) {
	kubernetesName := regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	kubernetesKey := regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		if !kubernetesName.MatchString(name) {
			return nil, fmt.Errorf("%q cannot be the name of a Secret: export secrets whose names have lower-case letters, digits, - and . only", name)
		}
		data := map[string]string{}
		for key, value := range secrets[name] {
			text, err := plain(value)
			if err == nil && !kubernetesKey.MatchString(key) {
				err = errors.New("cannot be a key of a Secret")
			}
			if err != nil {
				return nil, fmt.Errorf("secret %s: the key %q %w", name, key, err)
			}
			data[key] = base64.StdEncoding.EncodeToString([]byte(text))
		}
		text, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": map[string]string{"name": name}, "data": data})
		if err != nil {
			return nil, err
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes(), nil
}

// plain returns a value as text.
func plain(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return fmt.Sprint(v), nil
	}
	return "", errors.New("has no single value: export it as JSON")
}
