// SPDX-License-Identifier: Apache-2.0

package xds

import "slices"

// search finds the resources that Envoy rejects without naming them: it sends
// the suspects again in groups, one group in flight at a time, and halves a group
// that is rejected. Other changes of the type wait until it is over, so that a
// rejection can only mean the group. n suspects of which one is guilty take about
// 2·log2(n) responses.
type search struct {
	groups [][]string // sorted; the last one is on trial
	nonce  string     // the response that carries the group on trial, once sent
}

func (s *search) active() bool { return len(s.groups) > 0 }

func (s *search) top() []string { return s.groups[len(s.groups)-1] }

// excludes reports whether name has to wait for the search.
func (s *search) excludes(name string) bool {
	if !s.active() {
		return false
	}
	_, on := slices.BinarySearch(s.top(), name)
	return !on
}

// carries notes that a response goes out; the first one with names of the group
// on trial is the one whose acknowledgement decides.
func (s *search) carries(nonce string, f flight) {
	if !s.active() || s.nonce != "" {
		return
	}
	if slices.ContainsFunc(f.resources, func(r sent) bool { return !s.excludes(r.name) }) {
		s.nonce = nonce
	}
}

func (s *search) drop(name string) {
	for i, g := range s.groups {
		if at, ok := slices.BinarySearch(g, name); ok {
			s.groups[i] = slices.Delete(g, at, at+1)
		}
	}
}

// pop ends the trial of a group.
func (s *search) pop() {
	s.groups = s.groups[:len(s.groups)-1]
	s.nonce = ""
}

// push puts names on trial next, in halves.
func (s *search) push(names []string) {
	if len(names) > 1 {
		mid := len(names) / 2
		s.groups = append(s.groups, slices.Clone(names[mid:]))
		names = names[:mid]
	}
	s.groups = append(s.groups, slices.Clone(names))
	s.nonce = ""
}

// drop takes a name out of the search that is no longer offered or wanted.
func (v *view) drop(name string) {
	v.search.drop(name)
	if v.search.active() && len(v.search.top()) == 0 {
		v.trial()
	}
}

// suspect starts or narrows the search after names (sorted, offered and wanted)
// were rejected together without being named. Offered calls its argument for every
// resource of the type that the cache holds.
func (v *view) suspect(names []string, onTrial bool, offered func(func(name, version string))) {
	switch {
	case onTrial:
		v.search.pop()
		v.search.push(names)
	case v.search.active():
		v.search.groups = slices.Insert(v.search.groups, 0, slices.Clone(names))
	default:
		v.search.push(names)
	}
	offered(func(name, version string) {
		if !v.search.excludes(name) || !v.wants(name) {
			return
		}
		_, suspected := slices.BinarySearch(names, name)
		if suspected || v.told[name] != version {
			v.told[name] = version
			v.due[name] = struct{}{}
		}
	})
	v.trial()
}

// trial has the group on trial sent, passes over empty groups, and ends the
// search when none is left.
func (v *view) trial() {
	for v.search.active() && len(v.search.top()) == 0 {
		v.search.pop()
	}
	if !v.search.active() {
		v.release()
		return
	}
	for _, name := range v.search.top() {
		v.told[name] = ""
		delete(v.due, name)
	}
}

// judged ends the trial of a group; the innocent of it are sent once more.
func (v *view) judged(innocent []string) {
	v.search.pop()
	if len(innocent) > 0 {
		v.search.groups = append(v.search.groups, slices.Clone(innocent))
	}
	v.trial()
}
