// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long nothing must have happened before a change is read;
	// settleMax bounds the wait when something happens all the time.
	settle    = 20 * time.Millisecond
	settleMax = 200 * time.Millisecond
	// rescan is how often everything is looked at whatever was notified: a safety
	// net for lost events, network file systems, targets of symbolic links and
	// directories that are replaced above the argument.
	rescan = 5 * time.Second
	// missingPoll is how often an argument that cannot be read is tried again.
	missingPoll = 200 * time.Millisecond
)

// Watch reads directories and files and delivers what they say: everything at
// first, then the differences, until ctx ends. It calls sink in the caller's
// goroutine, never twice at a time; a slow sink delays batches, and what happened
// in the meantime comes in one.
//
// A change is delivered about 20 ms after it happened, at most 200 ms while
// changes go on, and within 5 s where the system does not report it. A file that
// becomes empty counts with its last content for one second more. A file should
// be replaced by renaming; one that is written in place may be read half written.
func Watch(ctx context.Context, dirs []string, o Options, sink func(Batch)) {
	w := &watcher{arguments: newArguments(dirs), watched: map[string]os.FileInfo{}}
	w.notify, w.notifyErr = fsnotify.NewWatcher()
	if w.notify != nil {
		defer w.notify.Close()
	}
	w.run(ctx, o, sink)
}

// run is the loop of Watch.
func (w *watcher) run(ctx context.Context, o Options, sink func(Batch)) {
	var last view
	for first := true; ; first = false {
		changed := w.arm()
		scanned, recheck := w.scan()
		if first || changed || scanned {
			v := look(w.arguments, o)
			v.notes = append(v.notes, w.notes...)
			if b, differs := batch(last, v); first || differs {
				sink(b)
			}
			last = v
		}
		if !w.wait(ctx, recheck) {
			return
		}
	}
}

// batch says what became of a view; differs is false when nothing did.
func batch(last, v view) (b Batch, differs bool) {
	b = Batch{
		Changes:  diff(last.objects, v.objects),
		Problems: v.problems,
		Notes:    v.notes,
		Synced:   v.synced,
		objects:  v.objects,
	}
	differs = len(b.Changes) > 0 || v.synced != last.synced || !sameObjects(last.objects, v.objects) ||
		!slices.Equal(last.problems, v.problems) || !slices.Equal(last.notes, v.notes)
	return b, differs
}

// watcher is the state of Watch.
type watcher struct {
	arguments []*argument
	notify    *fsnotify.Watcher      // nil when the system gives none
	notifyErr error                  // why
	watched   map[string]os.FileInfo // what notify watches, to tell when it is replaced
	notes     []Note                 // about what cannot be watched
}

func (w *watcher) scan() (changed bool, recheck time.Time) {
	now := time.Now()
	for _, a := range w.arguments {
		c, r := a.scan(now)
		changed, recheck = changed || c, earlier(recheck, r)
	}
	return changed, recheck
}

// arm watches what has to be watched and is not yet. It comes before a scan, so
// that nothing is missed between the two.
func (w *watcher) arm() (changed bool) {
	was := w.notes
	w.notes = nil
	for _, a := range w.arguments {
		for _, path := range a.watchPaths() {
			if err := w.watch(path); err != nil {
				w.notes = append(w.notes, Note{
					File: a.path,
					Text: "is not watched: " + reason(err) + "; changes are seen within " + rescan.String(),
				})
			}
		}
	}
	return !slices.Equal(was, w.notes)
}

// watchPaths returns what has to be watched to see an argument change: the
// directory; and, for a single file or a symbolic link, the directory it is in.
// A parent is not watched without need: it may be a busy place.
func (a *argument) watchPaths() (out []string) {
	info, err := os.Lstat(a.path)
	if err != nil {
		return nil
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		out = append(out, filepath.Dir(a.path))
		if info, err = os.Stat(a.path); err != nil {
			return out
		}
	}
	if info.IsDir() {
		return append(out, a.path)
	}
	return append(out, filepath.Dir(a.path))
}

// watch makes sure that path, and not what had its name before, is watched.
func (w *watcher) watch(path string) error {
	if w.notify == nil {
		return w.notifyErr
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil // gone since; the scan says so
	}
	if was, ok := w.watched[path]; ok {
		if os.SameFile(was, info) {
			return nil
		}
		_ = w.notify.Remove(path) // it is gone already when the system noticed
		delete(w.watched, path)
	}
	if err := w.notify.Add(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	w.watched[path] = info
	return nil
}

// wait returns when it is time for the next scan; false when ctx ended.
func (w *watcher) wait(ctx context.Context, recheck time.Time) bool {
	next := earlier(time.Now().Add(rescan), recheck)
	var missing <-chan time.Time
	if slices.ContainsFunc(w.arguments, func(a *argument) bool { return a.problem != "" }) {
		poll := time.NewTicker(missingPoll)
		defer poll.Stop()
		missing = poll.C
	}
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	var d debounce
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-missing:
			if slices.ContainsFunc(w.arguments, (*argument).isBack) {
				return true
			}
			continue
		case e := <-events:
			if !w.event(e) {
				continue
			}
		case <-errs: //nolint:errcheck // whatever the error, events were lost
			for _, a := range w.arguments {
				a.distrust("")
			}
		}
		d = d.hit(time.Now())
		timer.Reset(time.Until(earlier(next, d.due())))
	}
}

// isBack reports whether an argument that could not be read now can.
func (a *argument) isBack() bool {
	if a.problem == "" {
		return false
	}
	_, err := a.list()
	return err == nil
}

// event takes note of what is said to have changed; false when it is none of ours.
func (w *watcher) event(e fsnotify.Event) bool {
	path := filepath.Clean(e.Name)
	if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
		delete(w.watched, path)
	}
	ours := false
	for _, a := range w.arguments {
		name := filepath.Base(path)
		switch {
		case path == a.path:
			a.distrust(path)
		case a.dir && filepath.Dir(path) == a.path && isManifest(name):
			a.distrust(path)
		case a.dir && filepath.Dir(path) == a.path && name == configMapLink:
			a.distrust("")
		default:
			continue
		}
		ours = true
	}
	return ours
}

// configMapLink is the link in a mounted ConfigMap or Secret through which all
// files lead; it is replaced when the object changes.
const configMapLink = "..data"

// distrust makes the next scan read the file whatever its stamp says; "" stands
// for all files.
func (a *argument) distrust(path string) {
	for p, f := range a.files {
		if path == "" || p == path {
			f.stamp = stamp{}
		}
	}
}

// debounce is when things began to happen and when they last did.
type debounce struct{ first, last time.Time }

func (d debounce) hit(now time.Time) debounce {
	if d.first.IsZero() {
		d.first = now
	}
	d.last = now
	return d
}

// due returns when to read what happened.
func (d debounce) due() time.Time {
	return earlier(d.first.Add(settleMax), d.last.Add(settle))
}
