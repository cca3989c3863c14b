// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	kjson "sigs.k8s.io/json"

	"aether.io/aether/internal/model"
)

// fileContent is what one file says.
type fileContent struct {
	items    []*item
	problems []Problem // not empty: the items do not count
	notes    []Note    // about what is not an object of ours
}

// item is one object of a file.
type item struct {
	id    identity
	obj   object
	set   model.Change // nil when the object adds nothing to the model
	del   model.Change // undoes set
	file  string
	label string // "Service default/web"
	notes []Note
}

// identity tells objects apart. Cluster-scoped kinds have no namespace.
type identity struct {
	kind int // index in kinds
	name model.Name
}

// parse reads one file. It is pure: file is only a name.
func parse(file string, data []byte) fileContent {
	p := parser{file: file}
	for _, d := range documents(file, data) {
		if d.err != nil {
			p.out.problems = append(p.out.problems, Problem{file, d.label, "", d.err.Error()})
			continue
		}
		p.object(d.label, d.json, typeMeta{}, false)
	}
	return p.out
}

type parser struct {
	file string
	out  fileContent
}

// typeMeta is what a typed List says about its items.
type typeMeta struct{ apiVersion, kind string }

// header is what must be known of an object before its type is.
type header struct {
	typeMeta
	namespace, name string
	fields          map[string]json.RawMessage
}

// readHeader reads the header; it is nil when raw is not a set of fields.
func readHeader(raw json.RawMessage) *header {
	h := header{}
	if json.Unmarshal(raw, &h.fields) != nil || h.fields == nil {
		return nil
	}
	var meta map[string]json.RawMessage
	_ = json.Unmarshal(h.fields["metadata"], &meta) // its type is checked with the whole object
	h.apiVersion, h.kind = text(h.fields["apiVersion"]), text(h.fields["kind"])
	h.namespace, h.name = text(meta["namespace"]), text(meta["name"])
	return &h
}

// text returns a JSON string's value, or "".
func text(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// object reads one object, or the items of a List.
func (p *parser) object(label string, raw json.RawMessage, inherit typeMeta, inList bool) {
	r := &report{file: p.file, object: label}
	defer func() { p.out.problems = append(p.out.problems, r.problems...) }()
	h := readHeader(raw)
	if h == nil {
		r.problem("", "is %s, must be a Kubernetes object", shown(raw))
		return
	}
	if h.kind == "" && h.apiVersion == "" {
		h.typeMeta = inherit
	}
	if h.kind == "" || h.apiVersion == "" {
		for _, f := range []struct{ name, value string }{{"apiVersion", h.apiVersion}, {"kind", h.kind}} {
			if f.value == "" {
				r.problem(f.name, "is missing or not text")
			}
		}
		return
	}
	if items, ok := listOf(h.typeMeta); ok {
		if inList {
			r.problem("kind", "is a %s inside a list", h.kind)
			return
		}
		p.list(r, label, h.fields["items"], items)
		return
	}
	n, ok := kindOf(h.typeMeta)
	if !ok {
		r.object = strings.TrimSuffix(fmt.Sprintf("%s %s", h.kind, strings.TrimPrefix(h.namespace+"/"+h.name, "/")), " ")
		r.note("", "is skipped: %s", whySkipped(h.typeMeta))
		p.out.notes = append(p.out.notes, r.notes...)
		return
	}
	if it := p.read(r, n, h, raw); it != nil {
		p.out.items = append(p.out.items, it)
	}
}

// list reads the items of a List. Those of a typed List may leave out their kind.
func (p *parser) list(r *report, label string, raw json.RawMessage, items typeMeta) {
	if len(raw) == 0 {
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		r.problem("items", "is %s, must be a list", shown(raw))
		return
	}
	for i, e := range list {
		p.object(fmt.Sprintf("%s, item %d", label, i+1), e, items, true)
	}
}

// read decodes, defaults, checks and converts an object of a known kind. It
// returns nil when there is a problem, which is then in r.
func (p *parser) read(r *report, n int, h *header, raw json.RawMessage) *item {
	k := &kinds[n]
	id := identity{kind: n, name: model.Name{Name: h.name}}
	if k.namespaced {
		id.name.Namespace = h.namespace
		if h.namespace == "" {
			id.name.Namespace = defaultNamespace
		}
	}
	where := r.object
	r.object = k.name + " in " + where
	if h.name != "" {
		r.object = k.label(id.name)
	}
	obj := k.make()
	if !p.decode(r, raw, obj) {
		return nil
	}
	if h.name == "" {
		r.problem("metadata.name", "is missing")
		return nil
	}
	obj.SetNamespace(id.name.Namespace)
	if msgs := k.nameRule(h.name); len(msgs) > 0 {
		r.problem("metadata.name", "%q is not a valid name: %s", h.name, msgs[0])
	}
	if k.namespaced {
		if msgs := content.IsDNS1123Label(id.name.Namespace); len(msgs) > 0 {
			r.problem("metadata.namespace", "%q is not a valid name: %s", id.name.Namespace, msgs[0])
		}
	}
	it := &item{id: id, obj: obj, file: p.file, label: r.object}
	it.set, it.del = k.read(obj, r)
	it.notes = r.notes
	if len(r.problems) > 0 {
		return nil
	}
	return it
}

// decode fills obj from raw. Unknown fields become notes, repeated ones and those
// of a wrong type problems; ok says that there was none of the latter.
func (p *parser) decode(r *report, raw json.RawMessage, obj object) (ok bool) {
	odd, err := kjson.UnmarshalStrict(raw, obj)
	if err != nil {
		bad := mismatches(raw, reflect.TypeOf(obj).Elem(), "")
		for _, m := range bad {
			r.problem(m.field, "%s", m.err)
		}
		if len(bad) == 0 {
			r.problem("", "%v", err)
		}
		return false
	}
	ok = true
	for _, e := range odd {
		field := ""
		if f, is := errors.AsType[kjson.FieldError](e); is {
			field = f.FieldPath()
		}
		if strings.HasPrefix(e.Error(), "unknown field") {
			r.note(field, "is no field of a %s and is ignored", reflect.TypeOf(obj).Elem().Name())
			continue
		}
		r.problem(field, "is there twice")
		ok = false
	}
	return ok
}
