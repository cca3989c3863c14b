// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan/demand"
)

// The files in the state directory. The pods' has a copy in the run directory,
// which counts first: pods end with the machine's uptime as that does, and
// without its record a running pod would lose its listener for good.
const (
	demandFile = "demand.json"
	podsFile   = "pods.json"
)

// places are the directories that hold a file, the one that counts first first.
func (c Config) places(name string) []string {
	if name == podsFile {
		return []string{c.RunDir, c.StateDir}
	}
	return []string{c.StateDir}
}

// store writes a file in all its places. A directory that is gone is made again.
func (c Config) store(name string, data []byte) error {
	var errs []error
	for _, dir := range c.places(name) {
		path := filepath.Join(dir, name)
		err := daemon.WriteFile(path, data, fileMode)
		if errors.Is(err, fs.ErrNotExist) && os.MkdirAll(dir, stateDirMode) == nil {
			err = daemon.WriteFile(path, data, fileMode)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

const (
	fileMode = 0o600
	// maxFile bounds what is read at the start: some 200,000 names.
	maxFile = 16 << 20
	// saveRetry is how long after a failed write the next one is tried.
	saveRetry = 30 * time.Second
	// demandGap is the shortest time from one writing of the demand file to the next:
	// each writes all of it, and a pod that dials its way through many Services asks for
	// a new name every few milliseconds. A name that was not written when the machine
	// stops is asked for again.
	demandGap = 250 * time.Millisecond
	// podsVersion is the version of pods.json that is written and read.
	podsVersion = 1
)

// file is one file of the state directory as the loop sees it. A writer goroutine
// writes it; at most one write is under way, and the next one holds whatever is
// true when it starts.
type file struct {
	name string
	// snapshot takes what is true now; the loop calls it, and the writer what it
	// returns, which makes the file's bytes.
	snapshot func() (encode func() []byte)
	wanted   uint64 // writes asked for
	sent     uint64 // wanted, when the last write was started
	done     uint64 // wanted, when the last finished write was started
	busy     bool
	gap      time.Duration // the shortest time between the starts of two writes
	sentAt   time.Time     // when the last write was started
	err      error         // of the last write
	retryAt  time.Time
	damaged  string // where a damaged one was set aside at the start
}

func (f *file) failing() bool { return f.err != nil }

type files map[string]*file

// write is one file to be written.
type write struct {
	file   string
	seq    uint64
	encode func() []byte
}

// save has a file written soon, and returns a number that its done reaches when
// what is true now has been written (or could not be).
func (l *loop) save(name string) uint64 {
	f := l.files[name]
	f.wanted++
	return f.wanted
}

// wake returns when a write is due, if one is and none is under way.
func (f *file) wake() (time.Time, bool) {
	switch {
	case f.busy:
		return time.Time{}, false
	case f.wanted > f.sent:
		return f.sentAt.Add(f.gap), true
	default:
		return f.retryAt, f.failing()
	}
}

// startSaves starts the writes that were asked for, where none is under way.
func (l *loop) startSaves(now time.Time) {
	for _, f := range l.files {
		if at, due := f.wake(); !due || now.Before(at) {
			continue
		}
		f.busy, f.sent, f.sentAt = true, f.wanted, now
		f.retryAt = now.Add(saveRetry)
		l.writes <- write{f.name, f.sent, f.snapshot()} // has room for every file
	}
}

// saved takes in the outcome of a write. A full or read-only disk is told once.
func (l *loop) saved(m saved) {
	f := l.files[m.file]
	f.busy, f.done = false, m.seq
	was := f.failing()
	f.err = m.err
	switch {
	case m.err != nil && !was:
		l.log.Warn("state is not saved; everything goes on, but a restart would lose what came since",
			"file", f.name, "err", m.err)
	case m.err == nil && was:
		l.log.Info("state is saved again", "file", f.name)
	}
}

// writer writes what it is sent until the channel is closed.
func writer(c Config, writes <-chan write, tell func(message)) {
	for w := range writes {
		tell(saved{w.file, w.seq, c.store(w.file, w.encode())})
	}
}

// finalSaves writes, when nobody else does any more, what is not on disk yet,
// with the last dials as they are now.
func (l *loop) finalSaves() {
	for _, f := range l.files {
		if f.name != demandFile && f.wanted == f.done && !f.failing() {
			continue
		}
		if !l.synced && f.name == demandFile {
			continue // nothing was learned
		}
		if err := l.cfg.store(f.name, f.snapshot()()); err != nil {
			l.log.Warn("state is not saved", "file", f.name, "err", err)
		}
	}
}

// restored is what an earlier agent left.
type restored struct {
	names []demand.Name
	pods  []model.Workload
	// annotations of the pods that have some.
	annotations map[model.Name]map[string]string
	damaged     map[string]string // file → where it was set aside, or why it could not be
}

// restore reads what an earlier agent left, each file from the first of its
// places that has a good one. A file that cannot be used is set aside and counts
// as empty; pods whose network namespace is gone are left out.
func restore(c Config, checkNetNS func(string) error, log *slog.Logger) restored {
	r := restored{damaged: map[string]string{}}
	read := func(name string, decode func([]byte) error) {
		for _, dir := range c.places(name) {
			path := filepath.Join(dir, name)
			data, err := daemon.ReadFile(path, maxFile)
			if err == nil && data == nil {
				continue
			}
			if err == nil {
				err = decode(data)
			}
			if err == nil {
				return
			}
			aside, moveErr := daemon.SetAside(path)
			if moveErr != nil {
				aside = moveErr.Error()
			}
			r.damaged[name] = fmt.Sprintf("%v; set aside: %s", err, aside)
			log.Warn("a state file is damaged or cannot be read; it is set aside and counts as empty",
				"file", path, "path", aside, "err", err)
		}
	}
	read(demandFile, func(b []byte) (err error) {
		r.names, err = demand.Decode(b)
		return err
	})
	read(podsFile, func(b []byte) (err error) {
		if r.pods, err = decodePods(b); err == nil {
			r.annotations = restoreAnnotations(b)
		}
		return err
	})
	r.pods = slices.DeleteFunc(r.pods, func(w model.Workload) bool {
		err := checkNetNS(w.NetNS)
		if err != nil {
			log.Info("pod is gone", "pod", w.Name.String(), "reason", err.Error())
		}
		return err != nil
	})
	return r
}

type podsHead struct {
	Version *int       `json:"version"`
	Pods    *[]api.Pod `json:"pods"`
}

// encodePods returns pods.json with these pods and their annotations, sorted by
// name.
func encodePods(ws []model.Workload, annotations func(model.Name) map[string]string) []byte {
	ws = slices.Clone(ws)
	slices.SortFunc(ws, func(a, b model.Workload) int { return a.Name.Compare(b.Name) })
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"version":%d,"pods":[`, podsVersion)
	for i, w := range ws {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		line, err := json.Marshal(api.Pod{
			Namespace: w.Name.Namespace, Name: w.Name.Name, UID: w.UID,
			ServiceAccount: w.ServiceAccount, IP: w.IP.String(), NetNS: w.NetNS,
			Annotations: annotations(w.Name),
		})
		if err != nil {
			panic(err) // a struct of strings
		}
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes()
}

// decodePods reads pods.json: all of it or an error that says what is wrong.
func decodePods(data []byte) ([]model.Workload, error) {
	var head podsHead
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&head); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse JSON: something follows the end of the object")
	}
	switch {
	case head.Version == nil:
		return nil, errors.New("version: missing")
	case *head.Version != podsVersion:
		return nil, fmt.Errorf("version: this agent reads version %d, the file has %d", podsVersion, *head.Version)
	case head.Pods == nil:
		return nil, errors.New("pods: missing")
	}
	seen := map[model.Name]bool{}
	ws := make([]model.Workload, 0, len(*head.Pods))
	for i, p := range *head.Pods {
		w, err := workload(p, func(string) error { return nil })
		if err != nil {
			return nil, fmt.Errorf("pods[%d].%w", i, err)
		}
		if seen[w.Name] {
			return nil, fmt.Errorf("pods[%d]: %s is there twice", i, w.Name)
		}
		seen[w.Name] = true
		ws = append(ws, w)
	}
	return ws, nil
}
