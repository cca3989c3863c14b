// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxFileBytes bounds one file.
	maxFileBytes = 64 << 20
	// emptyGrace is how long a file that held objects may be empty before that is
	// believed: "command > file" empties it long before it writes.
	emptyGrace = time.Second
	// stampAge is how old a file must have been when it was read for an unchanged
	// size and modification time to mean unchanged content: clocks of file systems
	// are coarse.
	stampAge = 2 * time.Second
)

// argument is one directory or file to read, and what it said last.
type argument struct {
	path    string // clean
	dir     bool
	files   map[string]*file // by path
	problem string           // why it cannot be read at present
	read    bool             // it could be read at least once
}

// file is one file and what it said last.
type file struct {
	stamp      stamp
	sum        [sha256.Size]byte // of the content that good or problems come from
	good       fileContent       // the last content without a problem
	problems   []Problem         // of the present content
	emptySince time.Time
}

// stamp tells unchanged files without reading them.
type stamp struct {
	info os.FileInfo
	at   time.Time // when info was taken
}

func (s stamp) unchanged(now os.FileInfo) bool {
	return s.info != nil && s.at.Sub(s.info.ModTime()) > stampAge &&
		s.info.Size() == now.Size() && s.info.ModTime().Equal(now.ModTime()) && os.SameFile(s.info, now)
}

func newArguments(paths []string) []*argument {
	out := make([]*argument, len(paths))
	for i, p := range paths {
		out[i] = &argument{path: filepath.Clean(p), files: map[string]*file{}}
	}
	return out
}

// isManifest reports whether a name in a directory is one that is read. Editors'
// temporary files either begin with a dot or end in another way.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml" || ext == ".json"
}

// scan reads what may have changed. recheck, if not zero, is when it wants to be
// called again at the latest.
func (a *argument) scan(now time.Time) (changed bool, recheck time.Time) {
	paths, err := a.list()
	if err != nil {
		was := a.problem
		a.problem = "cannot be read: " + reason(err)
		return a.problem != was, time.Time{}
	}
	changed = a.problem != "" || !a.read
	a.problem, a.read = "", true
	listed := make(map[string]bool, len(paths))
	for _, path := range paths {
		listed[path] = true
	}
	for path := range a.files {
		if !listed[path] {
			delete(a.files, path)
			changed = true
		}
	}
	for _, path := range paths {
		f, known := a.files[path]
		if !known {
			f = &file{}
		}
		exists, did, again := f.refresh(path, now)
		switch {
		case exists && !known:
			a.files[path] = f
		case !exists && known:
			delete(a.files, path)
			did = true
		}
		changed = changed || did
		recheck = earlier(recheck, again)
	}
	return changed, recheck
}

// list returns the paths to read.
func (a *argument) list() ([]string, error) {
	info, err := os.Stat(a.path)
	if err != nil {
		return nil, err
	}
	a.dir = info.IsDir()
	if !a.dir {
		return []string{a.path}, nil
	}
	entries, err := os.ReadDir(a.path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if isManifest(e.Name()) {
			out = append(out, filepath.Join(a.path, e.Name()))
		}
	}
	return out, nil
}

// refresh reads the file if it may have changed.
func (f *file) refresh(path string, now time.Time) (exists, changed bool, recheck time.Time) {
	info, err := os.Stat(path)
	if err != nil {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return false, false, time.Time{} // gone since it was listed
		}
		return true, f.refuse(path, "cannot be read: "+reason(err)), time.Time{}
	}
	if info.IsDir() {
		return false, false, time.Time{}
	}
	if f.stamp.unchanged(info) {
		return true, false, time.Time{}
	}
	data, info, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, time.Time{}
	}
	if err != nil {
		return true, f.refuse(path, "cannot be read: "+reason(err)), time.Time{}
	}
	if again, wait := f.beingWritten(data, now); wait {
		return true, false, again
	}
	f.stamp = stamp{info, now}
	sum := sha256.Sum256(data)
	if sum == f.sum {
		return true, false, time.Time{}
	}
	f.sum = sum
	c := parse(path, data)
	f.problems = c.problems
	if len(c.problems) == 0 {
		f.good = c
	}
	return true, true, time.Time{}
}

// beingWritten reports whether an empty file is to be taken as one that is about
// to be written, and until when.
func (f *file) beingWritten(data []byte, now time.Time) (until time.Time, wait bool) {
	if len(bytes.TrimSpace(data)) > 0 || len(f.good.items) == 0 {
		f.emptySince = time.Time{}
		return time.Time{}, false
	}
	if f.emptySince.IsZero() {
		f.emptySince = now
	}
	until = f.emptySince.Add(emptyGrace)
	return until, now.Before(until)
}

// refuse keeps the last good content of a file that cannot be read.
func (f *file) refuse(path, why string) (changed bool) {
	problems := []Problem{{File: path, Err: why}}
	changed = !slices.Equal(f.problems, problems)
	f.problems, f.stamp, f.sum = problems, stamp{}, [sha256.Size]byte{}
	return changed
}

// readFile reads a regular file. It opens without blocking, so that a pipe under
// the name of a manifest stops nobody.
func readFile(path string) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > maxFileBytes {
		return nil, nil, fmt.Errorf("it is larger than %d MiB", maxFileBytes>>20)
	}
	return data, info, nil
}

// reason returns an error without the path, which is said elsewhere.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// earlier returns the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// view is what all arguments say together.
type view struct {
	objects  inventory
	problems []Problem
	notes    []Note
	synced   bool
}

// look puts together what the arguments said when they were last scanned.
func look(as []*argument, o Options) view {
	v := view{synced: true}
	contents := make([][]fileContent, len(as))
	for i, a := range as {
		v.synced = v.synced && a.read
		if a.problem != "" {
			what := a.problem
			if a.read {
				what += "; its last content stays in use"
			}
			v.problems = append(v.problems, Problem{File: a.path, Err: what})
		}
		for _, path := range slices.Sorted(maps.Keys(a.files)) {
			contents[i] = append(contents[i], a.files[path].good)
			v.problems = append(v.problems, a.files[path].problems...)
		}
	}
	v.objects, v.notes = merge(contents, o)
	return v
}

// Load reads directories and files once. Each that cannot be read at all is an
// error; what is wrong inside them is in the Result's Problems, and a file with a
// Problem contributes nothing.
func Load(dirs []string, o Options) (Result, error) {
	as := newArguments(dirs)
	var errs []error
	for _, a := range as {
		a.scan(time.Now())
		if a.problem != "" {
			errs = append(errs, fmt.Errorf("read manifests: %s %s", a.path, a.problem))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Result{}, err
	}
	v := look(as, o)
	return Result{Objects: v.objects.byKind(), Changes: diff(nil, v.objects), Problems: v.problems, Notes: v.notes}, nil
}
