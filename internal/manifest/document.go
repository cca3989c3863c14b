// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v2"
)

// document is one document of a file. Empty documents are not counted.
type document struct {
	label string // "document 2"
	json  json.RawMessage
	err   error // why json is absent
}

// documents cuts a file into its documents. A syntax error ends the list: what
// follows it cannot be trusted.
func documents(file string, data []byte) []document {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // byte order mark
	named := strings.EqualFold(filepath.Ext(file), ".json")
	if named || bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		docs, err := jsonDocuments(data)
		if err == nil || named {
			return docs
		}
	}
	return yamlDocuments(data)
}

// jsonDocuments reads JSON values that follow one another. The error, if any, is
// the last document's.
func jsonDocuments(data []byte) (docs []document, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		d := document{label: fmt.Sprintf("document %d", len(docs)+1)}
		start := dec.InputOffset()
		err := dec.Decode(&d.json)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			d.json, d.err = nil, jsonError(data, start, err)
			return append(docs, d), err
		}
		docs = append(docs, d)
	}
}

// jsonError adds the line at which JSON stopped making sense.
func jsonError(data []byte, start int64, err error) error {
	at := start
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = s.Offset
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		at, err = int64(len(data)), errors.New("the file ends in the middle of it")
	}
	at = min(at, int64(len(data)))
	return fmt.Errorf("read JSON: line %d: %w", 1+bytes.Count(data[:at], []byte("\n")), err)
}

// yamlDocuments reads a YAML stream. Repeated keys are errors.
func yamlDocuments(data []byte) (docs []document) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.SetStrict(true)
	for {
		d := document{label: fmt.Sprintf("document %d", len(docs)+1)}
		var v any
		err := dec.Decode(&v)
		var repeated *yaml.TypeError
		switch {
		case errors.Is(err, io.EOF):
			return docs
		case errors.As(err, &repeated): // the decoder goes on after these
			d.err = fmt.Errorf("read YAML: %s", strings.Join(repeated.Errors, "; "))
		case err != nil:
			d.err = fmt.Errorf("read YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
			return append(docs, d)
		case v == nil:
			continue
		default:
			d.json, d.err = toJSON(v)
		}
		docs = append(docs, d)
	}
}

// toJSON writes a decoded YAML value as JSON.
func toJSON(v any) (json.RawMessage, error) {
	v, err := textKeys(v)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write YAML as JSON: %w", err)
	}
	return out, nil
}

// textKeys makes the keys of all mappings text, as JSON needs them.
func textKeys(v any) (any, error) {
	switch v := v.(type) {
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			switch k.(type) {
			case string, int, int64, uint64, float64, bool:
			default:
				return nil, fmt.Errorf("the key %v is not text", k)
			}
			key := fmt.Sprint(k)
			if _, twice := out[key]; twice {
				return nil, fmt.Errorf("the key %q is there twice", key)
			}
			e, err := textKeys(e)
			if err != nil {
				return nil, err
			}
			out[key] = e
		}
		return out, nil
	case []any:
		for i, e := range v {
			e, err := textKeys(e)
			if err != nil {
				return nil, err
			}
			v[i] = e
		}
	}
	return v, nil
}
