// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// telling is a watch that is being answered.
type telling struct {
	*stream
	server *Server
	answer *answer
	ctx    context.Context
	query  request
	filter filter

	info     runtime.SerializerInfo
	compress bool
	// pending are frames that wait for the next flush, frames counts all.
	pending bytes.Buffer
	framer  io.Writer
	frames  int
	// told is the version up to which everything was told.
	told uint64
}

func (s *Server) watch(a *answer, r *http.Request, q request) error {
	o, err := s.readOptions(r.URL.Query())
	if err != nil {
		return err
	}
	f, err := newFilter(q, o)
	if err != nil {
		return err
	}
	info, ok := negotiate(r, !q.kind.custom)
	if !ok || info.StreamSerializer == nil {
		return notAcceptable(q)
	}
	version, err := parseVersion(o.ResourceVersion)
	if err != nil {
		// API servers answer a watch so, and a list otherwise.
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}
	}
	t := &telling{
		stream: &stream{kind: q.kind, version: q.version, order: make(chan ending, 1)},
		server: s, answer: a, ctx: r.Context(), query: q, filter: f, info: info,
	}
	t.framer = info.StreamSerializer.NewFrameWriter(&t.pending)
	mediaType := info.MediaType
	if !info.EncodesAsText {
		mediaType += ";stream=watch"
	}
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	if initial && o.AllowWatchBookmarks && s.options.Minor >= latestMinor && compressible(r) {
		t.compress = true
		a.Header().Set("Content-Encoding", "gzip")
		a.Header().Add("Vary", "Accept-Encoding")
	}
	s.faults.open(t.stream)
	defer s.faults.close(t.stream)
	a.begin(http.StatusOK, mediaType)
	if err := a.Flush(); err != nil {
		return err
	}
	return t.run(o, version)
}

// run tells until the stream ends. A nil error is an orderly end.
func (t *telling) run(o *metainternal.ListOptions, version uint64) error {
	err := t.start(o, version)
	if err == nil {
		err = t.follow(o)
	}
	var refusal apierrors.APIStatus
	switch {
	case errors.Is(err, errEnded):
		return nil
	case errors.As(err, &refusal):
		// Once a watch has begun its errors are events.
		status := refusal.Status()
		if err := t.tell(watch.Error, &status); err != nil {
			return err
		}
		return t.flush()
	}
	return err
}

// errEnded is an end that is nobody's fault.
var errEnded = errors.New("the watch has ended")

// start tells the state that the watch begins with, if it wants one.
func (t *telling) start(o *metainternal.ListOptions, version uint64) error {
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	legacy := o.SendInitialEvents == nil && version == 0
	switch {
	case initial:
		if err := t.server.fresh(t.ctx, version); err != nil {
			return err
		}
	case legacy:
	case version == 0:
		t.told, _ = t.server.store.state()
		return nil
	default:
		t.told = version
		return nil
	}
	now, objects, _ := t.server.store.now(t.kind.resource)
	t.told = now
	for _, one := range objects {
		if !t.filter.passes(one.object) {
			continue
		}
		if err := t.tellObject(watch.Added, one.object, ""); err != nil {
			return err
		}
	}
	if initial && o.AllowWatchBookmarks {
		if err := t.bookmark(true); err != nil {
			return err
		}
	}
	return t.flush()
}

// follow tells every change, and bookmarks, until the timeout.
func (t *telling) follow(o *metainternal.ListOptions) error {
	var timeout <-chan time.Time
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		timer := time.NewTimer(time.Duration(*o.TimeoutSeconds) * time.Second)
		defer timer.Stop()
		timeout = timer.C
	}
	var marks <-chan time.Time
	if o.AllowWatchBookmarks {
		ticker := time.NewTicker(t.server.options.BookmarkEvery)
		defer ticker.Stop()
		marks = ticker.C
	}
	for {
		events, now, changed, ok := t.server.store.since(t.kind.resource, t.told)
		if !ok {
			return apierrors.NewResourceExpired("too old resource version: " + strconv.FormatUint(t.told, 10))
		}
		for _, e := range events {
			if err := t.tellEvent(e); err != nil {
				return err
			}
		}
		if err := t.flush(); err != nil {
			return err
		}
		// A watch from a version still to come hears nothing before that.
		t.told = max(t.told, now)
		select {
		case <-changed:
		case <-marks:
			if now, _ := t.server.store.state(); t.told > now {
				continue
			}
			if err := t.bookmark(false); err != nil {
				return err
			}
		case <-timeout:
			return errEnded
		case how := <-t.order:
			return t.end(how)
		case <-t.ctx.Done():
			return t.ctx.Err()
		}
	}
}

// tellEvent tells a write the way the watch's selectors see it.
func (t *telling) tellEvent(e event) error {
	before, after := t.filter.passes(e.before), t.filter.passes(e.after)
	switch {
	case after && !before:
		return t.tellObject(watch.Added, e.after, "")
	case after:
		return t.tellObject(watch.Modified, e.after, "")
	case before:
		// What is told of an object that is gone is its last state, at the version
		// of its going.
		return t.tellObject(watch.Deleted, e.before, strconv.FormatUint(e.version, 10))
	}
	return nil
}

func (t *telling) tellObject(what watch.EventType, o Object, version string) error {
	o, err := t.kind.as(t.version, o)
	if err != nil {
		return err
	}
	if version != "" {
		o.SetResourceVersion(version)
	}
	return t.tell(what, o)
}

// bookmark tells how far the watch has come, which everything told is behind.
func (t *telling) bookmark(end bool) error {
	o := t.kind.empty(t.version)
	o.SetResourceVersion(strconv.FormatUint(t.told, 10))
	if end {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return t.tell(watch.Bookmark, o)
}

// tell adds a frame.
func (t *telling) tell(what watch.EventType, o runtime.Object) error {
	gv := schema.GroupVersion{Group: t.kind.group, Version: t.version}
	inner, err := encode(t.info.Serializer, gv, o)
	if err != nil {
		return err
	}
	outer, err := encode(t.info.StreamSerializer.Serializer, gv, &metav1.WatchEvent{
		Type: string(what), Object: runtime.RawExtension{Raw: inner},
	})
	if err != nil {
		return err
	}
	begin := t.pending.Len()
	if _, err := t.framer.Write(outer); err != nil {
		return err
	}
	t.frames++
	if n := t.server.faults.breaking(); n > 0 && t.frames >= n {
		t.pending.Truncate(begin + (t.pending.Len()-begin)/2)
		return t.broken()
	}
	if t.pending.Len() > 64*1024 {
		return t.flush()
	}
	return nil
}

// broken sends what there is and ends the stream as a broken connection does.
func (t *telling) broken() error {
	if err := t.flush(); err != nil {
		return err
	}
	return errCut
}

// flush sends the pending frames, unless streams are stalled.
func (t *telling) flush() error {
	if t.pending.Len() == 0 {
		return nil
	}
	for stalled := t.server.faults.stalled(); stalled != nil; stalled = t.server.faults.stalled() {
		select {
		case <-stalled:
		case how := <-t.order:
			t.pending.Reset()
			return t.end(how)
		case <-t.ctx.Done():
			return t.ctx.Err()
		}
	}
	body := t.pending.Bytes()
	if t.compress {
		if err := compressed(t.answer, body); err != nil {
			return err
		}
	} else if _, err := t.answer.Write(body); err != nil {
		return err
	}
	t.pending.Reset()
	t.answer.record.change(func(r *Request) { r.Events = t.frames })
	return t.answer.Flush()
}

// end ends the stream the way it was ordered to.
func (t *telling) end(how ending) error {
	switch how {
	case endBroken:
		if err := t.bookmark(false); err != nil {
			return err
		}
		t.pending.Truncate(t.pending.Len() / 2)
		return t.broken()
	case endExpired:
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	default:
		return errEnded
	}
}
