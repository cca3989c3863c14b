// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// freshWait is how long a request for a version still to come is held.
const freshWait = 3 * time.Second

// gzipFrom is the size from which a list is compressed.
const gzipFrom = 128 * 1024

// readOptions reads and validates the query of a list or watch, with the code of
// API servers.
func (s *Server) readOptions(query url.Values) (*metainternal.ListOptions, error) {
	o := &metainternal.ListOptions{}
	if err := metainternalscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, o); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	metainternal.SetListOptionsDefaults(o, s.options.streamingLists())
	if errs := validation.ValidateListOptions(o, s.options.streamingLists()); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return o, nil
}

// filter is what of a resource a request wants to see.
type filter struct {
	kind      kind
	namespace string
	options   *metainternal.ListOptions
}

func newFilter(q request, o *metainternal.ListOptions) (filter, error) {
	if o.FieldSelector != nil {
		for _, r := range o.FieldSelector.Requirements() {
			if !q.kind.selectable(r.Field) {
				return filter{}, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", r.Field))
			}
		}
	}
	return filter{q.kind, q.namespace, o}, nil
}

// all reports whether the filter lets everything of the resource through.
func (f filter) all() bool {
	return (f.options.LabelSelector == nil || f.options.LabelSelector.Empty()) &&
		(f.options.FieldSelector == nil || f.options.FieldSelector.Empty())
}

func (f filter) passes(o Object) bool {
	if o == nil || f.namespace != "" && o.GetNamespace() != f.namespace {
		return false
	}
	if sel := f.options.LabelSelector; sel != nil && !sel.Matches(labelSet(o.GetLabels())) {
		return false
	}
	if sel := f.options.FieldSelector; sel != nil && !sel.Empty() && !sel.Matches(f.kind.fieldsOf(o)) {
		return false
	}
	return true
}

// labelSet is labels as selectors look at them.
type labelSet map[string]string

func (l labelSet) Has(label string) bool              { _, ok := l[label]; return ok }
func (l labelSet) Get(label string) string            { return l[label] }
func (l labelSet) Lookup(label string) (string, bool) { v, ok := l[label]; return v, ok }

func parseVersion(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion: Invalid value: %q: %w", text, err)
	}
	return v, nil
}

// fresh waits until the server has come to a version, for as long as API servers
// do.
func (s *Server) fresh(ctx context.Context, version uint64) error {
	t := time.NewTimer(freshWait)
	defer t.Stop()
	for {
		now, changed := s.store.state()
		if now >= version {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			e := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", version, now), 1)
			e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
			return e
		}
	}
}

// page is a part of what there was at a version.
type page struct {
	version uint64
	objects []stored
}

// continuation is what a continue token says; -1 means the latest version.
type continuation struct {
	Version   int64  `json:"rv"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"name"` // the last one told
}

func (c continuation) String() string {
	raw, err := json.Marshal(c)
	if err != nil {
		panic("apitest: " + err.Error()) // three plain fields
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseContinuation(text string) (c continuation, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return continuation{}, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: %v", err))
	}
	return c, nil
}

// read returns what a list request is about: which version, and what there was.
func (s *Server) read(ctx context.Context, resource string, o *metainternal.ListOptions) (page, error) {
	if o.Continue != "" {
		return s.readOn(resource, o.Continue)
	}
	version, err := parseVersion(o.ResourceVersion)
	if err != nil {
		return page{}, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if err := s.fresh(ctx, version); err != nil {
		return page{}, err
	}
	// A limit beside a version has always meant exactly that version.
	exact := o.ResourceVersionMatch == metav1.ResourceVersionMatchExact || o.ResourceVersionMatch == "" && o.Limit > 0 && version > 0
	if !exact {
		now, objects, _ := s.store.now(resource)
		return page{now, objects}, nil
	}
	objects, ok := s.store.at(resource, version)
	if !ok {
		return page{}, apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	}
	return page{version, objects}, nil
}

// readOn reads what follows a page.
func (s *Server) readOn(resource, token string) (page, error) {
	c, err := parseContinuation(token)
	if err != nil {
		return page{}, err
	}
	p := page{version: uint64(max(c.Version, 0))}
	if c.Version < 0 {
		p.version, p.objects, _ = s.store.now(resource)
	} else {
		var ok bool
		if p.objects, ok = s.store.at(resource, p.version); !ok {
			e := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
			c.Version = -1
			e.ErrStatus.Continue = c.String()
			return page{}, e
		}
	}
	last := key{resource, c.Namespace, c.Name}
	first := sort.Search(len(p.objects), func(i int) bool { return p.objects[i].key.compare(last) > 0 })
	p.objects = p.objects[first:]
	return p, nil
}

// cut applies the filter and the limit. The rest is counted if nothing was
// filtered.
func (p page) cut(f filter) (objects []Object, about metav1.ListMeta) {
	about.ResourceVersion = strconv.FormatUint(p.version, 10)
	var last key
	for i, o := range p.objects {
		if !f.passes(o.object) {
			continue
		}
		if f.options.Limit > 0 && int64(len(objects)) == f.options.Limit && f.options.ResourceVersion != "0" {
			about.Continue = continuation{int64(p.version), last.namespace, last.name}.String()
			if rest := int64(len(p.objects) - i); f.all() && f.namespace == "" {
				about.RemainingItemCount = &rest
			}
			break
		}
		objects, last = append(objects, o.object), o.key
	}
	return objects, about
}

func (s *Server) list(a *answer, r *http.Request, q request) error {
	o, err := s.readOptions(r.URL.Query())
	if err != nil {
		return err
	}
	f, err := newFilter(q, o)
	if err != nil {
		return err
	}
	info, ok := negotiate(r, !q.kind.custom)
	if !ok {
		return notAcceptable(q)
	}
	p, err := s.read(r.Context(), q.kind.resource, o)
	if err != nil {
		return err
	}
	told, about := p.cut(f)
	objects := make([]runtime.Object, 0, len(told))
	for _, one := range told {
		as, err := q.kind.as(q.version, one)
		if err != nil {
			return err
		}
		objects = append(objects, as)
	}
	list, err := q.kind.list(q.version, about, objects)
	if err != nil {
		return err
	}
	body, err := encode(info.Serializer, schema.GroupVersion{Group: q.kind.group, Version: q.version}, list)
	if err != nil {
		return err
	}
	return s.sendList(a, r, info.MediaType, body)
}

// errCut is the end of an answer that a fault cut.
var errCut = errors.New("cut by the test")

func (s *Server) sendList(a *answer, r *http.Request, mediaType string, body []byte) error {
	if s.faults.takeTruncation() {
		a.begin(http.StatusOK, mediaType)
		if _, err := a.Write(body[:len(body)/2]); err != nil {
			return err
		}
		if err := a.Flush(); err != nil {
			return err
		}
		return errCut
	}
	if len(body) < gzipFrom || !compressible(r) {
		a.begin(http.StatusOK, mediaType)
		_, err := a.Write(body)
		return err
	}
	a.Header().Set("Content-Encoding", "gzip")
	a.Header().Add("Vary", "Accept-Encoding")
	a.begin(http.StatusOK, mediaType)
	return compressed(a, body)
}
