// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"
)

// mismatch is a field whose value does not fit its type.
type mismatch struct {
	field string
	err   string
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// mismatches finds every value of raw that does not fit t, in the order of the
// type's fields. The decoder's own error names neither list indexes nor more than
// one field, so this walks value and type side by side. It is only called when
// decoding raw into t has failed.
func mismatches(raw json.RawMessage, t reflect.Type, field string) []mismatch {
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return leaf(raw, t, field)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return mismatches(raw, t.Elem(), field)
	case reflect.Struct:
		return structMismatches(raw, t, field)
	case reflect.Map:
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil {
			return leaf(raw, t, field)
		}
		keys := make([]string, 0, len(m))
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		var out []mismatch
		for _, k := range keys {
			out = append(out, mismatches(m[k], t.Elem(), fmt.Sprintf("%s[%q]", field, k))...)
		}
		return out
	case reflect.Slice:
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			return leaf(raw, t, field)
		}
		var out []mismatch
		for i, e := range list {
			out = append(out, mismatches(e, t.Elem(), fmt.Sprintf("%s[%d]", field, i))...)
		}
		return out
	}
	return leaf(raw, t, field)
}

// structMismatches walks the fields of a struct that are present.
func structMismatches(raw json.RawMessage, t reflect.Type, field string) []mismatch {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return leaf(raw, t, field)
	}
	var out []mismatch
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			out = append(out, mismatches(raw, f.Type, field)...)
			continue
		}
		if v, ok := m[name]; ok {
			out = append(out, mismatches(v, f.Type, join(field, name))...)
		}
	}
	return out
}

// leaf tries one value on its own.
func leaf(raw json.RawMessage, t reflect.Type, field string) []mismatch {
	err := kjson.UnmarshalCaseSensitivePreserveInts(raw, reflect.New(t).Interface())
	if err == nil {
		return nil
	}
	if want := wanted(t); want != "" {
		return []mismatch{{field, fmt.Sprintf("is %s, must be %s", shown(raw), want)}}
	}
	return []mismatch{{field, fmt.Sprintf("is %s: %v", shown(raw), err)}}
}

// wanted says in words what a type takes; "" when its own error says it better.
func wanted(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return ""
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of at most %d bits", t.Bits())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text (in quotes, if it looks like a number or like true)"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a set of fields"
	}
	return ""
}

// shown describes a JSON value in a few words.
func shown(raw json.RawMessage) string {
	text := strings.TrimSpace(string(raw))
	switch {
	case strings.HasPrefix(text, "{"):
		return "a set of fields"
	case strings.HasPrefix(text, "["):
		return "a list"
	case strings.HasPrefix(text, `"`):
		const longest = 60
		if len(text) > longest {
			cut := longest
			for !utf8.RuneStart(text[cut]) {
				cut--
			}
			text = text[:cut] + `…"`
		}
		return "the text " + text
	}
	return text
}

// join appends a field's name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
