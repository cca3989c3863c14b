// SPDX-License-Identifier: Apache-2.0

package xds

import "slices"

// search finds the resources that Envoy rejects without naming them: it has the
// suspects sent again in groups, one group in flight at a time, and halves a group
// that is rejected. Other changes of the type wait until it is over, so that a
// rejection can only mean the group. n suspects of which one is guilty take about
// 2·log2(n) responses.
type search struct {
	groups []group // none of them empty; the last one is on trial
	serial int
}

type group struct {
	id    int
	names []string // sorted
}

func (s *search) active() bool { return len(s.groups) > 0 }

// trial identifies the group on trial; 0 is none.
func (s *search) trial() int {
	if !s.active() {
		return 0
	}
	return s.groups[len(s.groups)-1].id
}

// excludes reports whether name has to wait for the search.
func (s *search) excludes(name string) bool {
	if !s.active() {
		return false
	}
	_, on := slices.BinarySearch(s.groups[len(s.groups)-1].names, name)
	return !on
}

// drop takes a name out that is no longer offered or wanted.
func (s *search) drop(name string) {
	for i, g := range s.groups {
		if at, ok := slices.BinarySearch(g.names, name); ok {
			s.groups[i].names = slices.Delete(g.names, at, at+1)
		}
	}
	s.groups = slices.DeleteFunc(s.groups, func(g group) bool { return len(g.names) == 0 })
}

// judged ends the trial of a group.
func (s *search) judged(id int) {
	s.groups = slices.DeleteFunc(s.groups, func(g group) bool { return g.id == id })
}

// try puts names, sorted, on trial next.
func (s *search) try(names []string) {
	if len(names) > 0 {
		s.serial++
		s.groups = append(s.groups, group{s.serial, slices.Clone(names)})
	}
}

// suspect puts names, sorted, on trial next, in halves.
func (s *search) suspect(names []string) {
	half := len(names) / 2
	s.try(names[half:])
	s.try(names[:half])
}
