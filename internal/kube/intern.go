// SPDX-License-Identifier: Apache-2.0

package kube

import "aether.io/aether/internal/model"

// mostInterned bounds the table: past it, it begins anew, and what comes then
// shares less.
const mostInterned = 1 << 16

// interner makes equal strings share their memory. Names of nodes, zones and ports
// are repeated in every endpoint.
type interner struct {
	strings map[string]string
	hints   map[string][]string // lists of one
}

// fact replaces what is worth it.
func (in *interner) fact(f *fact) {
	if len(in.strings)+len(in.hints) > mostInterned || in.strings == nil {
		in.strings, in.hints = map[string]string{}, map[string][]string{}
	}
	switch c := f.set.(type) {
	case model.SetService:
		s := &c.Service
		in.name(&s.Name)
		f.name = s.Name
		for i := range s.Ports {
			in.one(&s.Ports[i].Name)
			in.one((*string)(&s.Ports[i].Protocol))
		}
		f.set = c
	case model.SetSlice:
		s := &c.Slice
		in.one(&s.Name.Namespace)
		f.name = s.Name
		in.one(&s.Service)
		for i := range s.Ports {
			in.one(&s.Ports[i].Name)
			in.one((*string)(&s.Ports[i].Protocol))
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			in.one(&e.Node)
			in.one(&e.Zone)
			in.list(&e.ZoneHints)
			in.list(&e.NodeHints)
		}
		f.set = c
	}
}

func (in *interner) name(n *model.Name) {
	in.one(&n.Namespace)
	in.one(&n.Name)
}

func (in *interner) one(s *string) {
	if *s == "" {
		return
	}
	if known, ok := in.strings[*s]; ok {
		*s = known
		return
	}
	in.strings[*s] = *s
}

// list shares the lists of one entry, which is what controllers write.
func (in *interner) list(l *[]string) {
	if len(*l) != 1 {
		return
	}
	if known, ok := in.hints[(*l)[0]]; ok {
		*l = known
		return
	}
	in.one(&(*l)[0])
	in.hints[(*l)[0]] = *l
}
